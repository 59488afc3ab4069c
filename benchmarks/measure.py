"""What the comparisons of this folder share: interleaved rounds, medians with their spread, the table for
people and one JSON object a line for programs.

A claim is a ratio of two medians from one run in which both took turns, so that both saw the same
neighbours and clock; absolute times of a shared machine prove nothing.
"""
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/cpu/bin"
PYTHON = ROOT / ".venv/bin/python"
PEERS_PYTHON = ROOT / ".venv-peers/bin/python"


def prepare(*targets, model=False, peers=False):
    """Sets up and builds what a benchmark needs; quick where nothing is missing."""
    flags = ["--model"] * model + ["--peers"] * peers
    subprocess.run([ROOT / "tools/setup", *flags], check=True, stdout=sys.stderr)
    subprocess.run([ROOT / "tools/build", "cpu", *targets], check=True, stdout=sys.stderr)


def use_matplotlib():
    """Starts this script anew under the Python that has matplotlib, unless it runs there already."""
    if pathlib.Path(sys.prefix) != PYTHON.parent.parent:
        os.execv(PYTHON, [PYTHON, *sys.argv])


def free_port():
    """A port of this host on which peers can meet; as text, for MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def take_turns(runs, rounds=5, warm_up=1):
    """Calls each function of {name: function} once a round, in turn; {name: [result of each round]}.
    Results of the warm-up rounds are dropped."""
    results = {name: [] for name in runs}
    for index in range(warm_up + rounds):
        for name, run in runs.items():
            result = run()
            if index >= warm_up:
                results[name].append(result)
    return results


def row(bench, case, ranks, ours, peer, peer_name, unit, calibration=None, higher_is_better=False):
    """One line of a benchmark. `ours` and `peer` are the samples of interleaved rounds; `ratio` says how
    many times better we are (over 1: ours is better) by the medians, `min` and `max` by the single rounds.
    `peer` may be empty: then the row has no ratio. `calibration` is {name: value} in the same unit."""
    def better(own, other):
        return own / other if higher_is_better else other / own

    ratios = [better(own, other) for own, other in zip(ours, peer)]
    middle = statistics.median
    return {"bench": bench, "case": case, "ranks": ranks, "ours": middle(ours),
            "peer": middle(peer) if peer else None, "peer_name": peer_name,
            "ratio": better(middle(ours), middle(peer)) if peer else None,
            "calibration": calibration, "unit": unit,
            "min": min(ratios, default=None), "max": max(ratios, default=None)}


def write_json(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)


def show(rows, digits=3):
    """The rows as a table."""
    def number(value):
        return "-" if value is None else f"{value:.{digits}g}" if value < 1000 else f"{value:.0f}"

    names = ["case", "ranks", "ours", "peer", "peer is", "ratio", "min", "max", "unit", "calibration"]
    lines = [[each["case"], str(each["ranks"]), number(each["ours"]), number(each["peer"]),
              each["peer_name"] or "-", number(each["ratio"]), number(each["min"]), number(each["max"]),
              each["unit"], "  ".join(f"{name} {number(value)}"
                                      for name, value in (each["calibration"] or {}).items())]
             for each in rows]
    widths = [max(len(line[i]) for line in [names, *lines]) for i in range(len(names))]
    for line in [names, *lines]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    sys.stdout.flush()
