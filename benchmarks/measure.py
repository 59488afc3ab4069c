"""Shared parts of the comparisons of this folder: interleaved rounds, medians with their spread, the table for
people, and one JSON object on each line for programs.

A claim is a ratio of two medians from one run. In this run both programs took turns, so other processes and the clock
affected both in the same way. Absolute times of a shared machine prove nothing.
"""
import argparse
import json
import math
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


class Arguments(argparse.ArgumentParser):
    """The command line of a benchmark. -h prints its docstring. As in every program here, an unknown word ends it
    with 64."""

    def __init__(self, doc):
        usage, _, description = doc.partition("\n\n")
        super().__init__(usage=usage.removeprefix("usage: "), description=description, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--json", metavar="FILE", help="write the rows there, one JSON object a line")

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(64, f"{self.prog}: {message}\n")


class Process:
    """A program that answers each command with a line of one number."""

    def __init__(self, command, **environment):
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1, env={**os.environ, **environment})

    def run(self, *words):
        try:
            print(*words, file=self.process.stdin)
        except BrokenPipeError:
            pass  # the program has printed the reason
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} ended with {self.process.wait()}")
        return float(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class CollectivesProbe:
    """The ranks of collectives_probe, which read commands from a FIFO in `folder`."""

    def __init__(self, programs, ranks, folder):
        fifo = folder / "commands"
        os.mkfifo(fifo)
        self.process = subprocess.Popen(
            [programs / "fsdp-run", "-n", str(ranks), programs / "collectives_probe", fifo],
            stdout=subprocess.PIPE, text=True)
        self.commands = open(fifo, "w", encoding="ascii", buffering=1)

    def run(self, name, size, repetitions, memory="-"):
        self.commands.write(f"{name} {size} {repetitions} {memory}\n")
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"collectives_probe ended with {self.process.wait()}")
        return float(line)

    def close(self):
        self.commands.close()
        if self.process.wait() != 0:
            sys.exit(f"collectives_probe ended with {self.process.returncode}")


def prepare(*targets, model=False, peers=False, gpu=False):
    """Installs and builds everything that a benchmark needs. It is fast if nothing is missing."""
    flags = ["--model"] * model + ["--peers"] * peers + ["--gpu"] * gpu
    subprocess.run([ROOT / "tools/setup", *flags], check=True, stdout=sys.stderr)
    subprocess.run([ROOT / "tools/build", "cpu", *targets], check=True, stdout=sys.stderr)


def use_matplotlib():
    """Starts this script again with the Python that has matplotlib, unless it already runs with it."""
    if pathlib.Path(sys.prefix) != PYTHON.parent.parent:
        os.execv(PYTHON, [PYTHON, *sys.argv])


def free_port():
    """Returns a free port for the rendezvous of peers, as text for MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def take_turns(runs, rounds=5, warm_up=1):
    """Calls each function of {name: function} once in each round, in turn. Returns {name: [result of each round]},
    without the warm-up rounds."""
    results = {name: [] for name in runs}
    for index in range(warm_up + rounds):
        for name, run in runs.items():
            result = run()
            if index >= warm_up:
                results[name].append(result)
    return results


def row(bench, case, ranks, ours, peer, peer_name, unit, calibration=None, higher_is_better=False):
    """Returns one line of a benchmark. `ours` and `peer` are the samples of interleaved rounds. `ratio` is the ratio of
    medians (over 1: ours is better); `min` and `max` are those of single rounds. `peer` may be empty, and `ours` if a
    run failed: then the row has no ratio. `calibration` is {name: value} in the same unit. Fields that do not apply
    are None. A benchmark adds further data in a field "details"."""
    def better(own, other):
        return own / other if higher_is_better else other / own

    ratios = [better(own, other) for own, other in zip(ours, peer)]
    ours, peer = (statistics.median(samples) if samples else None for samples in (ours, peer))
    return {"bench": bench, "case": case, "ranks": ranks, "ours": ours, "peer": peer,
            "peer_name": peer_name, "ratio": better(ours, peer) if ratios else None,
            "calibration": calibration, "unit": unit,
            "min": min(ratios, default=None), "max": max(ratios, default=None)}


def high_end(ours, peer):
    """Returns the upper end of the 95 % interval (by order) of the median of the rounds' ratios, for two times."""
    ratios = sorted(other / own for own, other in zip(ours, peer))
    return ratios[min(len(ratios) - 1, math.ceil(len(ratios) / 2 + 0.98 * len(ratios) ** 0.5))]


def spread(row):
    """Returns the ratio of a row for a sentence, with its smallest and largest round."""
    return f"{row['ratio']:.3g} ({row['min']:.3g}–{row['max']:.3g})"


def write_json(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)


def show(rows, digits=3):
    """Prints the rows as a table."""
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
