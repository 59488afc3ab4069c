"""Records steps of published optimizers, for recorded_optimizers_test.cpp: tests/optim/records/optimizers.txt.

Needs torch, lion-pytorch and timm. A case is a line `case NAME option=value …`, followed by a line `after STEPS`
for each count of steps, with all elements of all parameters. Parameters of at most one dimension have half the
learning rate and no weight decay. The learning rate is halved before step 100. `initial` and `gradient` are
exact in float32; the test computes the same.
"""

import pathlib

import torch
from lion_pytorch import Lion
from timm.optim.lamb import Lamb
from timm.optim.lars import Lars

RECORD = pathlib.Path(__file__).parent / "records" / "optimizers.txt"
SHAPES = [(), (5,), (9, 7), (2, 3, 4)]
AFTER = [1, 200]
CASES = """
RAdam lr=0.01
RAdam lr=0.01 weight_decay=0.1 beta1=0.8 beta2=0.95 eps=1e-06
RAdam lr=0.01 weight_decay=0.1 decoupled_weight_decay=1
Lion lr=0.001
Lion lr=0.001 weight_decay=0.5 beta1=0.95 beta2=0.98
Lamb lr=0.01 weight_decay=0.01 always_adapt=1
Lamb lr=0.01 weight_decay=0.1 beta1=0.8 beta2=0.95 always_adapt=0
Lars lr=0.1 weight_decay=0.01 momentum=0.9 trust_coefficient=0.01 always_adapt=1
Lars lr=0.1 weight_decay=0.01 momentum=0.9 nesterov=1 trust_coefficient=0.01 always_adapt=0
Lars lr=0.1 momentum=0 trust_coefficient=0.01 always_adapt=1
""".strip().splitlines()


def initial(parameter):
    shape = SHAPES[parameter]
    at = torch.arange(torch.Size(shape).numel())
    # The second parameter is zero, because a norm of zero has a trust ratio of 1.
    scale = 0 if parameter == 1 else 1 / 64
    return ((at * 37 + parameter * 11) % 64 - 32).float().mul(scale).reshape(shape)


def gradient(parameter, step):
    shape = SHAPES[parameter]
    at = torch.arange(torch.Size(shape).numel())
    return ((at * 13 + parameter * 7 + step * (at % 5 + 3)) % 17 - 8).float().div(8).reshape(shape)


def make(name, options, parameters):
    known = dict(options)
    if "beta1" in known or "beta2" in known:
        known["betas"] = (known.pop("beta1"), known.pop("beta2"))
    for flag in ("decoupled_weight_decay", "nesterov", "always_adapt"):
        if flag in known:
            known[flag] = bool(known[flag])
    small = [each for each in parameters if each.dim() <= 1]
    large = [each for each in parameters if each.dim() > 1]
    groups = [{"params": large}, {"params": small, "lr": known["lr"] / 2, "weight_decay": 0.0}]
    if name == "RAdam":
        return torch.optim.RAdam(groups, foreach=False, **known)
    if name == "Lion":
        return Lion(groups, **known)
    if name == "Lamb":
        return Lamb(groups, max_grad_norm=None, foreach=False, **known)
    known["trust_coeff"] = known.pop("trust_coefficient")
    return Lars(groups, foreach=False, **known)


def main():
    lines = []
    for case in CASES:
        name, *options = case.split()
        parameters = [torch.nn.Parameter(initial(i)) for i in range(len(SHAPES))]
        optimizer = make(name, {key: float(value) for key, value in (each.split("=") for each in options)}, parameters)
        lines.append(f"case {case}")
        for step in range(max(AFTER)):
            if step == 100:
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            for i, each in enumerate(parameters):
                each.grad = gradient(i, step)
            optimizer.step()
            if step + 1 in AFTER:
                values = torch.cat([each.detach().flatten() for each in parameters]).tolist()
                lines.append(f"after {step + 1} " + " ".join(f"{value:.9g}" for value in values))
    RECORD.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
