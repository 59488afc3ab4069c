"""Measures G1 and G4: the optimizer's kernel and the collectives of thread ranks, relative to the memory bandwidth."""
import statistics

import measure
from gpu_bars.bench import barred


def calibration(bench, deadline):
    """Returns {"copy": GB/s, "matrix": TFLOP/s}."""
    with bench.contestants({"rates": bench.probe("rates", bench.sizes.copied, bench.sizes.matrix)}) as started:
        rates = bench.take_turns({name: (started["rates"], f"{name} {bench.sizes.repetitions}")
                                  for name in ("copy", "matrix")}, deadline)
    return {name: statistics.median(samples) for name, samples in rates.items()}


def adamw_rows(bench, numel, units, deadline):
    names = {"adamw": "ours", "ours, bf16 copy": "ours_copy", "torch": "torch", "torch + cast": "torch_copy"}
    with bench.contestants({"adamw": bench.probe("adamw", numel, units),
                            "rates": bench.probe("rates", bench.sizes.copied, bench.sizes.matrix)}) as started:
        asked = {name: (started["adamw"], f"{command} {bench.sizes.repetitions}") for name, command in names.items()}
        rates = bench.take_turns({**asked, "copy": (started["rates"], f"copy {bench.sizes.repetitions}")}, deadline)
    known = {"copy": statistics.median(rates["copy"])}

    def row(case, ours, peer, peer_name):
        return measure.row("gpu", f"{case}, {numel / 1e6:.0f} M", 1, rates[ours], rates[peer], peer_name, "GB/s", known,
                           higher_is_better=True)

    return [barred("G1", row("AdamW", "adamw", "copy", "copy"), 0.90),
            barred("G1", row("AdamW with a bf16 copy", "ours, bf16 copy", "copy", "copy"), 0.90),
            barred("G1", row("AdamW", "adamw", "torch", "torch fused"), 1.0),
            barred("G1", row("AdamW with a bf16 copy", "ours, bf16 copy", "torch + cast", "torch fused + cast"), 1.08)]


def g1(bench, deadline):
    return [row for numel, units in bench.sizes.parameters for row in adamw_rows(bench, numel, units, deadline)]


def collective_rows(bench, ranks, deadline):
    with bench.contestants({"collectives": bench.probe("collectives", ranks, bench.sizes.collective_bytes),
                            "rates": bench.probe("rates", bench.sizes.copied, bench.sizes.matrix)}) as started:
        asked = {name: (started["collectives"], f"{name} {bench.sizes.repetitions}")
                 for name in ("all_gather", "reduce_scatter")}
        rates = bench.take_turns({**asked, "copy": (started["rates"], f"copy {bench.sizes.repetitions}")}, deadline)
    known = {"copy": statistics.median(rates["copy"])}
    return [barred("G4", measure.row("gpu", f"{name}, {bench.sizes.collective_bytes / 2**20:.3g} MiB", ranks,
                                     rates[name], rates["copy"], "copy", "GB/s", known, higher_is_better=True), least)
            for name, least in (("all_gather", 0.90), ("reduce_scatter", 0.85))]


def g4(bench, deadline):
    return [row for ranks in bench.sizes.thread_ranks for row in collective_rows(bench, ranks, deadline)]
