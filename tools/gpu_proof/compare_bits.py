#!/usr/bin/env python3
"""usage: compare_bits.py --left PROGRAM DEVICE --right PROGRAM DEVICE [--keep FOLDER]

Runs two programs that write the bits of kernels and small trainings (tests/on_gpu/bits_program.cpp) in parallel,
and names each result that differs. Exits with 1 if one does, or if a program fails.
"""
import argparse
import concurrent.futures
import pathlib
import re
import sys
import tempfile

import programs

LIMIT = 600  # seconds
SHOWN = 20   # differences that are printed


class BadBits(Exception):
    """The error of a file or program that has no bits to compare. The message is the reason."""


def read_bits(path):
    """Returns {name: hash and count} of a file of results. Raises BadBits."""
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadBits(f"{path}: {error}") from None
    bits = {}
    for number, line in enumerate(lines[:-1], 1):
        match = re.fullmatch(r"([0-9a-f]{16} \d+) (.+)", line)
        if not match or match[2] in bits:
            raise BadBits(f"{path}:{number}: no result: {line[:80]!r}")
        bits[match[2]] = match[1]
    if not bits or lines[-1] != f"end {len(bits)}":
        raise BadBits(f"{path}: incomplete: {len(bits)} results, and the last line is missing")
    return bits


def differences(left, right):
    """Yields a line for each result that differs."""
    for name in left | right:
        if name not in left or name not in right:
            yield f"{name}: only on the {'left' if name in left else 'right'}"
        elif left[name] != right[name]:
            yield f"{name}: {left[name].split()[0]} and {right[name].split()[0]}"


def bits_of(program, device, path, deadline, environment=None):
    try:
        ended = programs.run([program, device, path], deadline, f"{path}.log", environment)
    except OSError as error:
        raise BadBits(f"{program} cannot be started: {error.strerror}") from None
    if ended.code != 0:
        raise BadBits(f"{pathlib.Path(program).name} {device} {ended.why}")
    return read_bits(path)


def compare(left, right, folder, deadline, environment=None):
    """Returns the number of results and the differences of two (program, device). Raises BadBits."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(bits_of, *side, folder / f"{name}.bits", deadline, environment)
                 for name, side in (("left", left), ("right", right))]
        bits = [side.result() for side in sides]
    return len(bits[0]), list(differences(*bits))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("\n\n")[0].removeprefix("usage: "), allow_abbrev=False)
    for side in ("--left", "--right"):
        parser.add_argument(side, nargs=2, required=True)
    parser.add_argument("--keep", metavar="FOLDER")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdp-bits-") as scratch:
        try:
            count, found = compare(options.left, options.right, options.keep or scratch, programs.Deadline(LIMIT))
        except BadBits as why:
            sys.exit(f"compare_bits: {why}")
    for line in found[:SHOWN]:
        print(line)
    print(f"{count} results, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
