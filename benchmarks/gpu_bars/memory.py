"""Measures G5: a model that does not fit under a memory limit on one rank, but fits on several ranks."""
import json

import gpu_facts
import measure
import programs
from gpu_bars.bench import noted
from scaling import checks

REFUSED = 78
NEEDED = "memory limit"  # words of the refusal


class Unexpected(Exception):
    """The error of a run that did not end as expected."""


def run_capped(bench, ranks, deadline, environment):
    model, tokens, limit, batch = bench.sizes.capped
    dtype = "bfloat16" if bench.device == "cuda" else "float32"
    probe = [bench.bin / "scaling_probe", "--model", model, "--batch", batch, "--seq-len", tokens, "--steps", 3,
             "--device", bench.device, "--param-dtype", dtype, "--memory-limit", limit]
    command = probe if ranks == 1 else [bench.bin / "fsdp-run", "-n", ranks, *probe]
    return programs.run(command, deadline, bench.output / f"capped_{ranks}.log", environment)


def cannot_run(bench, ranks):
    """Returns why this number of processes cannot have GPUs (None if they can), and the environment that selects
    the GPUs."""
    if bench.device != "cuda" or len(bench.facts.gpus) >= ranks:
        return None, {}
    if ranks == 2:
        return bench.facts.cannot_share(), gpu_facts.shared_gpu()
    return f"{ranks} processes need as many GPUs, there are {len(bench.facts.gpus)}", {}


def refusal_row(bench, deadline):
    ended = run_capped(bench, 1, deadline, bench.environment)
    said = programs.reason_of(ended.output).partition("; planned:")[0]
    if ended.code != REFUSED or NEEDED not in said:
        raise Unexpected(f"one rank {ended.why}, expected code {REFUSED} and a line about its {NEEDED}")
    row = measure.row("gpu", f"{bench.sizes.capped[0]} under {bench.sizes.capped[2]}", 1, [], [], "", "GiB")
    return noted("G5", row, {"said": said})


def planned_row(bench, ranks, deadline, environment):
    ended = run_capped(bench, ranks, deadline, environment)
    line = next((line for line in ended.output.splitlines() if line.startswith("{")), None)
    if ended.code != 0 or line is None:
        raise Unexpected(f"{ranks} ranks {ended.why}")
    told = json.loads(line)
    wrong = list(checks.check_plan(told))
    if wrong:
        raise Unexpected(f"{ranks} ranks: these bytes are not as planned: {'; '.join(wrong[:3])}")
    gib = {name: [told[name]["device peak"] / 2**30] for name in ("measured", "planned")}
    return noted("G5", measure.row("gpu", f"{bench.sizes.capped[0]} under {bench.sizes.capped[2]}", ranks,
                                   gib["measured"], gib["planned"], "the plan", "GiB"),
                 {"said": "engine bytes equal to the plan, peak within 5 %"})


def g5(bench, deadline):
    rows = [refusal_row(bench, deadline)]
    for ranks in bench.sizes.process_ranks:
        why, environment = cannot_run(bench, ranks)
        if why:
            row = measure.row("gpu", f"{bench.sizes.capped[0]} under {bench.sizes.capped[2]}", ranks, [], [], "", "GiB")
            rows.append(noted("G5", row, {"said": f"not run: {why}"}))
        else:
            rows.append(planned_row(bench, ranks, deadline, environment))
    return rows
