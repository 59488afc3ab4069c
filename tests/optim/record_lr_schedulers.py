"""Records the rates of torch.optim.lr_scheduler, for lr_scheduler_test.cpp: tests/optim/records/lr_schedulers.txt.

Run with .venv-peers/bin/python. A case is a line `case NAME option=value …`. For SequentialLR, a line
`with NAME option=value …` follows for each scheduler in it. The next line is `lr` with the rate of each step.
OneCycleLR also has a line `momentum`. `value*count` means `count` equal values. ReduceLROnPlateau gets
metric(step), or its negative if a higher metric is better.
Some options are not PyTorch's: `lr` is the optimizer's initial rate. `set=STEP,LR` changes the rate directly
before that step of the scheduler. `decay=D` is the lambda D**epoch. `optimizer` names the optimizer.
"""

import itertools
import math
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler

RECORD = pathlib.Path(__file__).parent / "records" / "lr_schedulers.txt"
STEPS = 200
CASES = """
case StepLR step_size=7
case StepLR step_size=1 gamma=0.99
case StepLR step_size=30 gamma=0.5 lr=0.003 set=45,0.07
case StepLR step_size=60 gamma=0
case MultiStepLR milestones=30,80
case MultiStepLR milestones=5,5,80,20,120 gamma=0.5
case MultiStepLR milestones=0,1,2 gamma=0.25
case ExponentialLR gamma=0.99
case ExponentialLR gamma=1.01 set=100,0.002
case LinearLR
case LinearLR start_factor=0.01 total_iters=100
case LinearLR start_factor=1 end_factor=0.1 total_iters=150
case LinearLR start_factor=1 end_factor=0 total_iters=40
case LinearLR start_factor=0.25 end_factor=0.75 total_iters=1
case LinearLR start_factor=0.1 total_iters=50 set=20,0.3
case CosineAnnealingLR T_max=200
case CosineAnnealingLR T_max=60 eta_min=0.001
case CosineAnnealingLR T_max=1 eta_min=0.01
case CosineAnnealingLR T_max=7 eta_min=0.2
case CosineAnnealingLR T_max=100 set=50,0.3
case LambdaLR decay=0.95
case SequentialLR milestones=20
with LinearLR start_factor=0.01 total_iters=20
with CosineAnnealingLR T_max=180 eta_min=0.0001
case SequentialLR milestones=10,60
with LinearLR start_factor=0.1 total_iters=10
with StepLR step_size=9 gamma=0.5
with ExponentialLR gamma=0.97
case SequentialLR milestones=15,30 set=20,0.5
with ExponentialLR gamma=0.9
with MultiStepLR milestones=3,8 gamma=0.3
with LambdaLR decay=0.9
case SequentialLR milestones=0
with StepLR step_size=2
with LinearLR total_iters=30
case SequentialLR milestones=40
with LinearLR start_factor=0.5 total_iters=40
with OneCycleLR max_lr=0.4 total_steps=170
case OneCycleLR max_lr=0.1 total_steps=150
case OneCycleLR max_lr=0.1 total_steps=150 optimizer=SGD
case OneCycleLR max_lr=0.5 epochs=4 steps_per_epoch=25 pct_start=0.1
case OneCycleLR max_lr=0.5 total_steps=100 anneal_strategy=linear base_momentum=0.7 max_momentum=0.9
case OneCycleLR max_lr=0.5 total_steps=100 div_factor=10 final_div_factor=100
case OneCycleLR max_lr=0.5 total_steps=100 three_phase=1
case OneCycleLR max_lr=0.5 total_steps=90 three_phase=1 anneal_strategy=linear pct_start=0.4
case OneCycleLR max_lr=0.5 total_steps=100 pct_start=0
case OneCycleLR max_lr=0.5 total_steps=100 cycle_momentum=0
case OneCycleLR max_lr=0.5 total_steps=1
case ReduceLROnPlateau
case ReduceLROnPlateau patience=11 factor=0.5
case ReduceLROnPlateau mode=max factor=0.5 patience=4
case ReduceLROnPlateau mode=max factor=0.5 patience=20
case ReduceLROnPlateau factor=0.7 patience=2 cooldown=5
case ReduceLROnPlateau factor=0.7 patience=0 min_lr=0.004
case ReduceLROnPlateau factor=0.5 patience=3 threshold=0.2 threshold_mode=abs
case ReduceLROnPlateau mode=max factor=0.5 patience=3 threshold=0.3 threshold_mode=abs
case ReduceLROnPlateau mode=max factor=0.5 patience=3 threshold=0.3
case ReduceLROnPlateau factor=0.5 patience=1 eps=0.001
case ReduceLROnPlateau factor=0.5 patience=1 set=150,0.4
"""
WORDS = {"mode", "threshold_mode", "anneal_strategy", "optimizer"}
LISTS = {"milestones", "set"}
FLAGS = {"three_phase", "cycle_momentum"}


def metric(step):
    """Returns a metric that is exact in binary. It falls with noise, then stays level, and is NaN at some steps."""
    if step % 97 == 96:
        return math.nan
    return ((7 * step * step + 3 * step) % 11) / 16 + 4 - min(step, 130) / 64


def number(text):
    try:
        return int(text)
    except ValueError:
        return float(text)


def read_options(words):
    options = {}
    for name, text in (word.split("=") for word in words):
        if name in WORDS:
            options[name] = text
        elif name in LISTS:
            options[name] = [number(each) for each in text.split(",")]
        elif name in FLAGS:
            options[name] = text == "1"
        else:
            options[name] = float(text) if name == "pct_start" else number(text)
    return options


def make(name, optimizer, options):
    if name == "LambdaLR":
        decay = options["decay"]
        return lr_scheduler.LambdaLR(optimizer, lambda epoch: decay**epoch)
    return getattr(lr_scheduler, name)(optimizer, **options)


def packed(values):
    runs = [(text, len(list(run))) for text, run in itertools.groupby(map(repr, values))]
    return " ".join(text if count == 1 else f"{text}*{count}" for text, count in runs)


def run(name, options, inner):
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    lr = options.pop("lr", 0.1)
    change, changed = options.pop("set", (None, None))
    if options.pop("optimizer", "AdamW") == "SGD":
        optimizer = torch.optim.SGD(parameter, lr=lr, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameter, lr=lr)
    if name == "SequentialLR":
        options["schedulers"] = [make(kind, optimizer, own) for kind, own in inner]
    scheduler = make(name, optimizer, options)
    sign = -1 if options.get("mode") == "max" else 1  # it improves
    group = optimizer.param_groups[0]
    lines = {"lr": [], "momentum": []}
    for step in range(STEPS):
        lines["lr"].append(float(group["lr"]))
        lines["momentum"].append(group["momentum"] if "momentum" in group else group["betas"][0])
        if name == "OneCycleLR" and step == scheduler.total_steps - 1:
            break
        optimizer.step()
        if step + 1 == change:
            group["lr"] = changed
        scheduler.step(*([sign * metric(step)] if name == "ReduceLROnPlateau" else []))
    if len(set(lines["momentum"])) == 1:
        del lines["momentum"]
    return [f"{key} {packed(values)}" for key, values in lines.items()]


def compute():
    """Returns the lines of the record."""
    warnings.simplefilter("ignore")
    lines = []
    blocks = [block.splitlines() for block in CASES.strip().removeprefix("case ").split("\ncase ")]
    for block in blocks:
        lines += ["case " + block[0], *block[1:]]
        name, *words = block[0].split()
        inner = [(words[1], read_options(words[2:])) for words in map(str.split, block[1:])]
        lines += run(name, read_options(words), inner)
    return lines


if __name__ == "__main__":
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text("\n".join(compute()) + "\n", encoding="ascii")
