#!/usr/bin/env python3
"""usage: tests/ports/compare.py BUILD-FOLDER [--only NAME,…] [--document FILE]

Compares programs that were ported to fsdp with the original programs (tests/ports/NAME). Runs the plain program,
and the sharded program on 1, 2 and 4 ranks with fsdp's optimizer and with LibTorch's. Compares every value that
they print, and counts the lines that the port has changed. tools/test ports builds the programs and runs this.
--document writes the table into a file, between two marker lines. Exits with 1 if values differ by more than the
program's limit, or if fewer than ten programs were ported within 20 lines.
"""
import argparse
import collections
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PORTS = pathlib.Path(__file__).parent
RANKS = (1, 2, 4)
NOT_COUNTED = re.compile(r'ports::Run |#include "ports/|namespace ports::|^\s*//')
LINES_BAR, WITHIN_LINES_BAR = 20, 10
BEGIN, END = "<!-- begin ports -->", "<!-- end ports -->"
HEAD = "| program | units chosen by | changed lines | largest relative difference |"

# Limits of the differences between values. They are relative to the larger of the value and 0.01.
EXACT = 0.0
ADAMW = 5e-6  # fsdp::AdamW rounds the last place of some parameters differently
ORDER = 5e-6  # another order of sums: a norm over all parameters, two backwards, a mean over the whole batch


@dataclasses.dataclass
class Port:
    name: str
    shows: str
    units: str
    ours: float = EXACT  # limit against the plain program part by part, with fsdp's optimizer
    theirs: float = EXACT  # limit with torch::optim
    whole: float | None = ORDER  # against the plain program on the whole batch; None: not comparable
    parts: bool = True  # the program is comparable part by part
    ranks: bool = False  # the plain program itself has ranks


ALL = [
    Port("regression", "a linear layer", "`Unit`"),
    Port("mnist", "convolutions, dropout", "`Unit`", whole=None),
    Port("dist_mnist", "a process group", "`Unit`", whole=None, ranks=True),
    Port("dcgan", "two models, BatchNorm", "`by_type`", ours=ADAMW, theirs=ORDER, whole=None),
    Port("alexnet", "convolutions, dropout", "`by_type`", whole=None),
    Port("resnet", "BatchNorm, residual blocks", "`each_child_of`", whole=None),
    Port("rnn", "an LSTM with state carried between batches", "`Unit`", ours=ORDER, theirs=ORDER),
    Port("vae", "a summed loss", "`Unit`", ours=ADAMW, whole=None),
    Port("nanogpt", "tied weights, groups, clipping", "`Unit`", ours=ADAMW, theirs=ORDER),
    Port("llama", "RMSNorm, rotary, SwiGLU", "`Unit`", ours=ADAMW),
    Port("lora", "a frozen base, adapters", "`by_type`", ours=ADAMW),
    Port("unet", "skip connections, `SyncBatchNorm`", "`each_child_of`", parts=False),
    Port("googlenet", "branches, auxiliary heads", "`by_type`", whole=None),
]


# ---- lines ----

def counted_lines(path, torch_optim):
    """Returns a program's lines as compiled with one of the optimizers, without comments, data and printing."""
    lines, taken = [], True
    for line in path.read_text().splitlines():
        if line.startswith("#ifdef PORTS_TORCH_OPTIM"):
            taken = torch_optim
        elif line.startswith("#else"):
            taken = not torch_optim
        elif line.startswith("#endif"):
            taken = True
        elif taken and line.strip() and not NOT_COUNTED.search(line):
            lines.append(line)
    return "\n".join(lines) + "\n"


def changed_lines(port, torch_optim):
    """Returns the number of added and of removed lines."""
    added = removed = 0
    with tempfile.TemporaryDirectory() as folder:
        for plain in sorted((PORTS / port.name).glob("plain*")):
            sharded = plain.with_name(plain.name.replace("plain", "sharded"))
            files = [pathlib.Path(folder, path.name) for path in (plain, sharded)]
            for path, file in zip((plain, sharded), files):
                file.write_text(counted_lines(path, torch_optim))
            said = subprocess.run(["git", "diff", "--no-index", "--numstat", *files], capture_output=True, text=True)
            if said.returncode not in (0, 1):
                sys.exit(f"git diff: {said.stderr}")
            if said.stdout:
                added, removed = added + int(said.stdout.split()[0]), removed + int(said.stdout.split()[1])
    return added, removed


# ---- values ----

def values_of(command, **environment):
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    if said.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {said.returncode}:\n{said.stdout}{said.stderr}")
    values = [line.rsplit(" ", 1) for line in said.stdout.splitlines()]
    if not values:
        sys.exit(f"{command} printed no values")
    return [(name, float(value)) for name, value in values]


def difference(port, got, expected):
    """Returns the largest difference, relative to a value or to 0.01."""
    if [name for name, _ in got] != [name for name, _ in expected]:
        sys.exit(f"{port.name}: the programs print other values: {got} and {expected}")
    return max(abs(a - b) / max(abs(b), 0.01) if a != b else 0.0 for (_, a), (_, b) in zip(got, expected))


class Runs:
    def __init__(self, build, port):
        self.programs, self.port, self.run = build / "bin/ports", port, build / "bin/fsdp-run"

    def plain(self, parts):
        program = self.programs / f"{self.port.name}_plain"
        if not self.port.ranks:
            return values_of([program], PORTS_PARTS=str(parts))
        with tempfile.TemporaryDirectory() as folder:
            return values_of([self.run, "-n", parts, program], PORTS_STORE=f"{folder}/store")

    def sharded(self, variant, ranks):
        return values_of([self.run, "-n", ranks, self.programs / f"{self.port.name}_{variant}"])


def shown(differences):
    worst = max(differences)
    return "0" if worst == 0 else f"{worst:.0e}"


def compare(build, port):
    """Returns the distance of fsdp's optimizer from the plain program, and the runs that exceed their limits."""
    runs, worst, misses = Runs(build, port), collections.defaultdict(list), []
    sharded = {(variant, ranks): runs.sharded(variant, ranks) for variant in ("sharded", "torch_optim")
               for ranks in RANKS}
    whole = runs.plain(1)
    by_parts = {ranks: runs.plain(ranks) for ranks in RANKS} if port.parts else {}
    for variant, bar in (("sharded", port.ours), ("torch_optim", port.theirs)):
        against = {"parts": by_parts, "whole": {ranks: whole for ranks in RANKS} if port.whole is not None else {}}
        for what, plain in against.items():
            if not plain:
                continue
            differences = {ranks: difference(port, sharded[variant, ranks], plain[ranks]) for ranks in plain}
            limit = bar if what == "parts" else max(port.whole, bar)
            misses += [f"{port.name}, {variant}, {what}, {ranks} ranks: {value:.3g} (bar {limit:g})"
                       for ranks, value in differences.items() if not value <= limit]
            print(f"  {variant:12} {what:6} " + " ".join(f"{ranks}: {shown([value]):6}"
                                                         for ranks, value in differences.items()), flush=True)
            worst["whole" if what == "whole" else variant] += differences.values()
    trained = [value for name, value in sharded["sharded", 1] if name == sharded["sharded", 1][0][0]]
    if not min(trained[1:]) < trained[0]:
        misses.append(f"{port.name}: it learned nothing: {trained}")
    return shown(worst["sharded"] or worst["whole"]), misses


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[0].removeprefix("usage: "))
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--document", type=pathlib.Path)
    options = parser.parse_args()
    chosen = [port for port in ALL if not options.only or port.name in options.only.split(",")]

    rows, misses, within = [], [], 0
    for port in chosen:
        lines = [changed_lines(port, torch_optim) for torch_optim in (False, True)]
        within += sum(lines[0]) <= LINES_BAR
        said = [f"+{added} −{removed}" for added, removed in lines]
        print(f"{port.name}: {said[0]} lines, {said[1]} with LibTorch's optimizer", flush=True)
        differs, missed = compare(options.build.resolve(), port)
        misses += missed
        rows.append(f"| [{port.name}](../tests/ports/{port.name}): {port.shows} | {port.units} | {sum(lines[0])}"
                    f" | {differs} |")
    if len(chosen) == len(ALL) and within < WITHIN_LINES_BAR:
        misses.append(f"{within} programs within {LINES_BAR} changed lines, {WITHIN_LINES_BAR} wanted")
    table = "\n".join([HEAD, "|---|---|---:|---|", *rows])
    print(f"\n{table}\n")
    if options.document:
        text = options.document.read_text()
        before, rest = text.split(BEGIN, 1)
        options.document.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END, 1)[1]}")
    for miss in misses:
        print(f"MISSED {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
