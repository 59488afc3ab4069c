"""Measures G2, G3 and G6: a training step relative to plain PyTorch, FSDP2 and the perfect schedule."""
import statistics

import measure
from gpu_bars.bench import barred, noted
from schedule import overlapped_ahead

LOSS_TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}  # relative, of the first losses
LEAST_TAX, LEAST_COMMON = 1 / 1.01, 1 / 1.05
LEAST_OF_SCHEDULE = 1 / 1.03
LEAST_SEQUENCES = 535  # a second


class DifferentLosses(Exception):
    """The error of contestants that have different losses. Their times are not used."""


def step_words(bench, mode, shape, dtype, clips):
    return [mode, bench.sizes.preset, *shape, dtype, int(clips)]


def step_times(bench, commands, dtype, deadline, imagined=()):
    """Returns {name: ms of a step, with a sample for each round}. First it checks that all losses are equal.
    Contestants with simulated peers are exempt."""
    with bench.contestants(commands) as started:
        losses = {}
        for name, who in started.items():
            who.ask("run 1", deadline)
            losses[name] = who.ask("loss", deadline)
        real = [name for name in losses if name not in imagined]
        first = losses[real[0]]
        for name in real:
            if abs(losses[name] - first) > LOSS_TOLERANCE[dtype] * abs(first):
                raise DifferentLosses(f"losses differ: {first:.6g} ({real[0]}) and {losses[name]:.6g} ({name})")
        return bench.take_turns({name: (who, f"run {bench.sizes.steps}") for name, who in started.items()}, deadline)


def g2(bench, deadline):
    rows = []
    for shape in bench.sizes.shapes:
        def words(mode, shape=shape):
            return step_words(bench, mode, shape, "float32", False)

        commands = {"ours": bench.probe("step", *words("full-shard")),
                    "common path": bench.probe("step", *words("common-path")),
                    "plain LibTorch": bench.probe("step", *words("plain"))}
        if bench.peers:
            commands["FSDP2"] = [*bench.peers, bench.device, *words("fsdp2")]
        times = step_times(bench, commands, "float32", deadline, imagined=("common path",))
        case = f"BERT {bench.sizes.preset}, fp32, {shape[0]}×{shape[1]}"

        def row(name, ours, peer, times=times):
            return measure.row("gpu", name, 1, times[ours], times[peer], peer, "ms")

        rows += [barred("G2", row(case, "ours", "plain LibTorch"), LEAST_TAX),
                 barred("G2", row(f"{case}, one of 8", "common path", "plain LibTorch"), LEAST_COMMON)]
        if bench.peers:
            against = row(case, "ours", "FSDP2")
            rows.append(barred("G2", against, 1.5) if shape == bench.sizes.shapes[0] else noted("G2", against))
    return rows


def g3(bench, deadline):
    shape = bench.sizes.qa_shape
    commands = {"ours": bench.probe("step", *step_words(bench, "full-shard", shape, "bfloat16", True))}
    if bench.peers:
        commands |= {name: [*bench.peers, bench.device, *step_words(bench, mode, shape, "bfloat16", True)]
                     for name, mode in (("plain PyTorch", "plain"), ("FSDP2", "fsdp2"))}
    times = step_times(bench, commands, "bfloat16", deadline)
    rates = {name: [shape[0] * 1e3 / ms for ms in samples] for name, samples in times.items()}
    case = f"BERT {bench.sizes.preset} QA, bf16, {shape[0]}×{shape[1]}"

    def row(peer, samples):
        return measure.row("gpu", case, 1, rates["ours"], samples, peer, "sequences/s", higher_is_better=True)

    rows = [barred("G3", row("the bar", [LEAST_SEQUENCES] * len(rates["ours"])), 1.0)]
    if bench.peers:
        rows += [barred("G3", row("plain PyTorch", rates["plain PyTorch"]), 1.0),
                 noted("G3", row("FSDP2", rates["FSDP2"]))]
    return rows


def g6(bench, deadline):
    _, units, forward, backward = bench.sizes.pauses
    rows = []
    with bench.contestants({"overlap": bench.probe("overlap", *bench.sizes.pauses)}) as started:
        for wire in bench.sizes.wires:
            asked = {prefetch: (started["overlap"], f"step {prefetch} {wire}") for prefetch in (0, 1)}
            times = bench.take_turns(asked, deadline)
            for prefetch, samples in times.items():
                perfect = overlapped_ahead([forward] * units, [backward] * units, wire, prefetch)
                row = measure.row("gpu", f"{wire} µs a collective, prefetch {prefetch}", 2,
                                  [us / 1e3 for us in samples], [perfect / 1e3] * len(samples), "the schedule", "ms")
                more = {"sum_ms": (units * (forward + backward) + 3 * units * wire) / 1e3,
                        "median_ms": statistics.median(samples) / 1e3}
                rows.append(barred("G6", row, LEAST_OF_SCHEDULE, more) if prefetch else noted("G6", row, more))
    return rows
