"""usage: unit_refusals_test.py COMPILE_COMMANDS SOURCE

Compiles SOURCE with the command in COMPILE_COMMANDS. For the lines after each comment `// refused: TEXT`, the
compiler must report exactly one error: a static assertion with that text. Other lines must have no error.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys


def expected_of(source):
    """Returns (first line, text) of each comment."""
    lines = source.read_text().splitlines()
    found = [(i, re.match(r"\s*// refused: (.*)", line)) for i, line in enumerate(lines, start=1)]
    return [(line, match[1]) for line, match in found if match]


def compile(commands, source):
    command = next(each for each in json.loads(commands.read_text()) if each["file"] == str(source))
    arguments = shlex.split(command["command"])
    del arguments[arguments.index("-o") : arguments.index("-o") + 2]
    run = subprocess.run(
        [*arguments, "-fsyntax-only", "-w", "-fmax-errors=0"],
        cwd=command["directory"], env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    return run.stderr


def errors_of(output, source):
    """Yields (line of SOURCE, text) of each error, in the compiler's order."""
    place = None  # the last line of SOURCE that the compiler named before its next error
    for line in output.splitlines():
        if match := re.match(re.escape(str(source)) + r":(\d+):", line):
            place = int(match[1])
        if match := re.match(r"\S+: (?:fatal )?error: (.*)", line):
            yield place, match[1]


def main():
    commands, source = (pathlib.Path(each).resolve() for each in sys.argv[1:])
    expected = expected_of(source)
    output = compile(commands, source)
    said = {line: [] for line, _ in expected}
    wrong = []
    for place, text in errors_of(output, source):
        before = [line for line, _ in expected if place is not None and line < place]
        if before:
            said[before[-1]].append(text)
        else:
            wrong.append(f"line {place}: {text}")
    for line, text in expected:
        errors = said[line]
        if len(errors) != 1 or not errors[0].startswith("static assertion failed") or text not in errors[0]:
            wrong.append("\n  ".join([f"{source.name}:{line}: expected one error: {text}", *errors]))
    if wrong or not expected:
        sys.exit("\n".join(wrong))
    print(f"{len(expected)} mistakes are refused, each by one error that says the way out")


main()
