"""Handles the golden file: bytes of cells, so that every change of them shows. Engine bytes and traffic depend only on
the engine and the model; LibTorch's planned bytes also on its version, and in lower types on the processor."""
import json
import pathlib

from . import checks


class BadGolden(Exception):
    """The error of a file that is not a golden file."""


def figures(row):
    """Returns {quantity: bytes} of the plan."""
    planned = row["planned"]
    named = {f"{phase}, {name}": size for phase, sizes in planned["phases"].items()
             for name, size in checks.engine_bytes(sizes).items()}
    return {**named, **{name: planned[name] for name in ("engine held", "host", "sent")}}


def measured_figures(row):
    return figures({"planned": row["measured"]})


def torch_figures(row):
    if row["param_dtype"] != "float32":
        return {}
    return {f"{phase}, LibTorch": sizes["LibTorch"] for phase, sizes in row["planned"]["phases"].items()}


def write(path, rows):
    """Writes a line for each cell."""
    cells = [f'{json.dumps(row["cell"])}: {json.dumps({"bytes": figures(row), "LibTorch": torch_figures(row)})}'
             for row in rows]
    text = f'{{"torch": {json.dumps(rows[0]["identity"]["torch"])}, "cells": {{\n'
    pathlib.Path(path).write_text(text + ",\n".join(cells) + "\n}}\n", encoding="utf-8")


def load(path):
    try:
        golden = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if not isinstance(golden["torch"], str):
            raise TypeError
        for each in golden["cells"].values():
            for sizes in (each["bytes"], each["LibTorch"]):
                if not all(isinstance(size, int) for size in sizes.values()):
                    raise TypeError
    except OSError as error:
        raise BadGolden(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadGolden(f"{path}: this is not a golden file; --write-golden makes one") from None
    return golden


def differences(golden, rows, is_whole):
    """Returns a line for each figure that differs and, if the run is complete, for each cell that only one side has."""
    found = []
    by_cell = {row["cell"]: row for row in rows}
    if is_whole:
        found += [f"{name}: in the golden file, and not run" for name in golden["cells"] if name not in by_cell]
    for name, row in by_cell.items():
        if name not in golden["cells"]:
            found.append(f"{name}: not in the golden file")
            continue
        wanted, planned, measured = golden["cells"][name], figures(row), measured_figures(row)
        for what in wanted["bytes"].keys() | planned.keys():
            sizes = [each.get(what) for each in (wanted["bytes"], planned, measured)]
            if len(set(sizes)) > 1:
                found.append(f"{name}: {what}: golden {sizes[0]}, planned {sizes[1]}, measured {sizes[2]}")
        if golden["torch"] == row["identity"]["torch"]:
            own = torch_figures(row)
            found += [f"{name}: {what}: golden {wanted['LibTorch'].get(what)}, planned {own.get(what)}"
                      for what in wanted["LibTorch"].keys() | own.keys()
                      if wanted["LibTorch"].get(what) != own.get(what)]
    return sorted(found)
