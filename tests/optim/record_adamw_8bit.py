"""Records steps of bitsandbytes' AdamW8bit, for adamw8bit_test.cpp: tests/optim/records/adamw_8bit.txt.

Needs torch and bitsandbytes (0.50). The first part trains one parameter with gradients that the test computes in the
same way, and records the state after steps 50 and 51 (codes in hexadecimal) and every 16th element of the parameter
after step 200. The second part records the loss of a small network after 1 and 200 steps.

bitsandbytes' quantization on the CPU is approximate: it stores codes up to 7 away from the nearest one, and none near
zero. Its other backends store the nearest code. The script replaces the quantization by this rule.
"""

import pathlib

import torch
from bitsandbytes.backends.cpu import ops
from bitsandbytes.optim import AdamW8bit

RECORD = pathlib.Path(__file__).parent / "records" / "adamw_8bit.txt"
NUMEL = 4103  # the last block has 7 elements
OPTIONS = {"lr": 1e-3, "weight_decay": 0.1}


def quantize_to_nearest(values, code, absmax, out, blocksize):
    padded = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % blocksize)).view(-1, blocksize)
    absmax.copy_(padded.abs().amax(1))
    scaled = (padded / absmax.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).double()
    middles = (code[1:].double() + code[:-1].double()) / 2
    out.copy_(torch.bucketize(scaled, middles).flatten()[: values.numel()].view(out.shape))


def initial():
    at = torch.arange(NUMEL)
    return ((at * 37) % 64 - 32).float() / 64


def gradient(step):
    at = torch.arange(NUMEL)
    return ((at * 13 + step * (at % 5 + 3)) % 17 - 8).float() * torch.pow(0.5, at % 11)


def record_state(lines):
    parameter = torch.nn.Parameter(initial())
    optimizer = AdamW8bit([parameter], **OPTIONS)
    for step in range(200):
        parameter.grad = gradient(step)
        optimizer.step()
        if step + 1 in (50, 51):
            state = optimizer.state[parameter]
            for moment in "12":
                codes = bytes(state[f"state{moment}"].tolist()).hex()
                absmax = " ".join(f"{value:.9g}" for value in state[f"absmax{moment}"].tolist())
                lines.append(f"state {step + 1} {moment} {codes} {absmax}")
    lines.append("values " + " ".join(f"{value:.9g}" for value in parameter[::16].tolist()))


def record_losses(lines):
    sample, column = torch.arange(64)[:, None], torch.arange(64)[None, :]
    inputs = ((sample % 16 * 37 + column * 11 + sample % 16 * column) % 23 - 11).float() / 11
    at = torch.arange(64)
    targets = ((at % 16 * 29) % 17 - 8).float() / 8 + ((at * 5) % 7 - 3).float() / 16
    hidden = torch.nn.Parameter(((torch.arange(128 * 64) * 37) % 64 - 32).float().view(128, 64) / 256)
    output = torch.nn.Parameter(((torch.arange(128) * 11) % 32 - 16).float() / 64)
    optimizer = AdamW8bit([hidden, output], **OPTIONS)
    for step in range(200):
        loss = (torch.tanh(inputs @ hidden.t()) @ output - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step in (0, 199):
            lines.append(f"loss {step} {loss.item():.9g}")
        optimizer.step()


def main():
    ops._quant_blockwise_fp32_direct = quantize_to_nearest
    lines = []
    record_state(lines)
    record_losses(lines)
    RECORD.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
