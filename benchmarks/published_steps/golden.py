"""Handles the golden file: predictions of a few steps, so that a change of the clock that moves predictions shows."""
import json
import pathlib
import sys

from published_steps import machines, steps

TOLERANCE = 0.005  # LibTorch's versions differ by less in the operators that they run
# Model, GPU, GPUs: products, accumulation, gathers that stay, recomputation, a slow network, and replicas.
CHOSEN = [("mpt-760m", "a100_40gb", 8), ("mpt-125m", "a100_40gb", 64), ("mpt-7b", "h100_80gb", 512),
          ("mpt-3b", "h100_80gb", 256), ("mpt-13b", "h100_80gb", 512), ("bert-base", "k80", 4)]
RATES = {**{gpu: name for name, gpu in machines.GPUS.items()}, "k80": "k80"}


def predictions(planner):
    """Returns {name of a step: predicted milliseconds}."""
    all_steps = steps.load()
    found = {}
    for model, gpu, gpus in CHOSEN:
        step = next(step for step in all_steps if (step.model, step.gpu, step.gpus) == (model, gpu, gpus))
        found[step.name] = 1e3 * planner.predict(step, machines.load(RATES[gpu])).total
    return found


def write(planner, path):
    rows = [f"  {json.dumps(name, ensure_ascii=False)}: {value:.3f}" for name, value in predictions(planner).items()]
    pathlib.Path(path).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def check(planner, path):
    """Prints predictions that differ from the golden file. Returns 1 if there are any, else 0."""
    try:
        golden = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        golden = {name: float(value) for name, value in golden.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"published: {path}: this is no golden file: {error}", file=sys.stderr)
        return 64
    found, wrong = predictions(planner), 0
    for name in sorted({*golden, *found}):
        old, new = golden.get(name), found.get(name)
        if old is None or new is None:
            print(f"{name}: only in {'the predictions' if old is None else 'the golden file'}")
            wrong += 1
        elif abs(new / old - 1) > TOLERANCE:
            print(f"{name}: predicted {new:.3f} ms, in the golden file {old:.3f} ms")
            wrong += 1
    if wrong:
        print("Predictions have changed. If this is intended: tools/bench published --fit, then "
              "--write-golden benchmarks/published_steps/golden.json")
    return 1 if wrong else 0
