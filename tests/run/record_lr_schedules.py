"""Records the learning rates of transformers' schedules, for training_options_test.cpp: tests/run/records/lr_schedules.txt.

Run with .venv-peers/bin/python. A case is a line `case TYPE WARMUP TOTAL LR KWARGS`, with the values of
--lr-scheduler-type, --warmup-steps, the number of steps, --learning-rate and --lr-scheduler-kwargs ({} for none). The
next line has the rate of each step, and of five more steps, as hexadecimal floats.
"""

import json
import math
import pathlib
import warnings

import torch
import transformers

RECORD = pathlib.Path(__file__).parent / "records" / "lr_schedules.txt"
CASES = [
    ("linear", 0, 40, 5e-5, {}),
    ("linear", 0.1, 33, 2e-3, {}),
    ("cosine", 7, 40, 5e-5, {}),
    ("cosine", 0, 40, 1e-3, {"num_cycles": 0.25}),
    ("constant", 0, 20, 3e-4, {}),
    ("constant_with_warmup", 10, 20, 3e-4, {}),
    ("polynomial", 5, 40, 1e-3, {}),
    ("polynomial", 0, 40, 1e-3, {"lr_end": 1e-5, "power": 2.0}),
    ("inverse_sqrt", 8, 40, 1e-3, {}),
    ("inverse_sqrt", 0, 40, 1e-3, {}),
    ("inverse_sqrt", 4, 40, 1e-3, {"timescale": 100}),
    ("cosine_with_min_lr", 4, 40, 1e-3, {"min_lr": 1e-4}),
    ("cosine_with_min_lr", 0.05, 41, 1e-3, {"min_lr_rate": 0.3, "num_cycles": 0.5}),
    ("warmup_stable_decay", 5, 40, 1e-3, {"num_decay_steps": 12}),
    ("warmup_stable_decay", 0, 40, 1e-3, {"num_decay_steps": 40, "min_lr_ratio": 0.1, "decay_type": "linear"}),
    ("warmup_stable_decay", 10, 40, 1e-3,
     {"num_decay_steps": 20, "min_lr_ratio": 0.05, "warmup_type": "cosine", "decay_type": "1-sqrt"}),
    ("warmup_stable_decay", 10, 40, 1e-3, {"num_decay_steps": 30, "warmup_type": "1-sqrt", "num_cycles": 0.5}),
]
MORE_STEPS = 5


def rates(kind, warmup, total, lr, kwargs):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    steps = int(warmup) if warmup >= 1 else math.ceil(total * warmup)  # TrainingArguments.get_warmup_steps
    scheduler = transformers.get_scheduler(kind, optimizer, steps, total, scheduler_specific_kwargs=kwargs)
    for _ in range(total + MORE_STEPS):
        yield scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()


def main():
    warnings.simplefilter("ignore")
    lines = [f"# Recorded by tests/run/record_lr_schedules.py with transformers {transformers.__version__}."]
    for case in CASES:
        kind, warmup, total, lr, kwargs = case
        lines.append(f"case {kind} {warmup} {total} {lr} {json.dumps(kwargs, separators=(',', ':'))}")
        lines.append(" ".join(float(rate).hex() for rate in rates(*case)))
    RECORD.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
