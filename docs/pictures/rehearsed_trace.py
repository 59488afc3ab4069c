#!/usr/bin/env python3
"""usage: docs/pictures/rehearsed_trace.py TRACE PICTURE

Draws the last step of a trace that `fsdp-plan --time … --trace TRACE` wrote: a row for each lane of rank 0, and
the engine's bytes. The picture of docs/rehearsal.md shows
  fsdp-plan --model llama-7b --ranks 512 --hosts 64 --batch 1 --seq-len 1024 --time h100 --trace TRACE
"""
import json
import sys

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

COLORS = {"forward": "#4C78A8", "recompute": "#72B7B2", "backward": "#9ECAE9", "gather": "#F58518",
          "reduce": "#E45756", "optimizer": "#54A24B", "gradient norm": "#BCBD22", "capture": "#B279A2",
          "wait for gather": "#D3D3D3", "wait for reduces": "#A0A0A0"}
ROWS = ["compute", "units in backward", "gather", "reduce", "upload", "download"]
GIB = 2.0**30


def read(path):
    """Returns the spans and counters of the last step, in milliseconds since its begin."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    step = max((e for e in events if e.get("cat") == "step"), key=lambda e: e["ts"])
    begin, end = step["ts"], step["ts"] + step["dur"]
    spans = [(names[e["tid"]], e["cat"], (e["ts"] - begin) / 1e3, e["dur"] / 1e3) for e in events
             if e["ph"] == "X" and begin <= e["ts"] < end and e["dur"] > 0]
    counters = [((e["ts"] - begin) / 1e3, e["args"]) for e in events if e["ph"] == "C" and begin <= e["ts"] <= end]
    return spans, counters, step["dur"] / 1e3


def draw_rows(axes, spans):
    rows = [row for row in ROWS if any(span[0] == row for span in spans)]
    for row, what, at, length in spans:
        if row not in rows:
            continue
        axes.broken_barh([(at, length)], (len(rows) - rows.index(row) - 0.9, 0.8), facecolors=COLORS.get(what, "#BAB0AC"),
                         edgecolor="white", linewidth=0.3)
    axes.set_yticks([len(rows) - i - 0.5 for i in range(len(rows))], rows)
    shown = sorted({what for row, what, *_ in spans if row in rows})
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLORS.get(what, "#BAB0AC")) for what in shown]
    axes.legend(handles, shown, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)


def draw_bytes(axes, counters, length):
    names = [name for name in counters[0][1] if any(values[name] for _, values in counters)]
    times = [at for at, _ in counters] + [length]
    curves = [[values[name] / GIB for _, values in counters] + [counters[-1][1][name] / GIB] for name in names]
    axes.stackplot(times, curves, labels=names, step="post")
    axes.set_ylabel("engine, GiB")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False, reverse=True)


def main(trace, picture):
    spans, counters, length = read(trace)
    figure, (rows, memory) = pyplot.subplots(2, 1, figsize=(11, 4), sharex=True, height_ratios=[2, 1],
                                             layout="constrained")
    draw_rows(rows, spans)
    draw_bytes(memory, counters, length)
    memory.set_xlabel("virtual time, ms")
    memory.set_xlim(0, length)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
