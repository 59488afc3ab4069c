#!/usr/bin/env python3
"""usage: docs/pictures/draw.py [--check]

Draws the diagrams of the documentation, each by the module of its name: step-timeline.svg, strategies.svg,
unit-bytes.svg and closing.svg in docs/pictures. Runs under the Python of tools/setup, which it starts itself.
--check writes nothing and ends with 1 if a committed diagram differs from what it draws (77: no such Python).
"""
import importlib
import pathlib
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "benchmarks"))
import measure  # noqa: E402

MODULES = ["step_timeline", "strategies", "unit_bytes", "closing"]


def draw_all(folder):
    """Returns the paths."""
    return [importlib.import_module(name).draw(folder) for name in MODULES]


def differing():
    """Names of the committed diagrams that differ from what is drawn."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = {path.name: path.read_bytes() for path in draw_all(folder)}
    paths = {name: FOLDER / name for name in drawn}
    return [name for name, path in paths.items() if not path.exists() or path.read_bytes() != drawn[name]]


def main():
    words = sys.argv[1:]
    if words in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if words not in ([], ["--check"]):
        print(f"draw.py: unrecognized arguments: {' '.join(words)}", file=sys.stderr)
        return 64
    if words and not measure.PYTHON.exists():
        print(f"nothing is checked: no {measure.PYTHON}")
        return 77
    measure.use_matplotlib()
    if words:
        names = differing()
        for name in names:
            print(f"docs/pictures/{name} differs from what docs/pictures/draw.py draws: run it", file=sys.stderr)
        return 1 if names else 0
    for path in draw_all(FOLDER):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
