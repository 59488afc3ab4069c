#!/usr/bin/env python3
"""usage: benchmarks/scaling/report.py RESULTS.jsonl FOLDER [--trace FILE --traced TEXT] [--docs]

Writes tables and pictures of a run of `tools/bench memory_scaling`: FOLDER/results.csv (all rows), cells.csv,
phases.csv, buffers.csv, left-out.csv, tables.md, scaling-*.png and scaling-*.svg. Names each picture that it leaves out
because data is missing. --docs updates docs/memory-scaling.md (each place between `<!-- begin NAME -->` and
`<!-- end NAME -->` gets the table NAME of tables.md), docs/memory-scaling/*.csv, and the pictures of these pages.
"""
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure
from scaling import (csv_tables, pictures, pictures_cap, pictures_plan, pictures_price, pictures_ranks, pictures_step,
                     rows, suite, tables)

PAGES = ["docs/memory-scaling.md"]
PICTURES = "docs/pictures"
CSV_TABLES = "docs/memory-scaling"


def flat(row, prefix=""):
    """Returns {"measured.phases.rest.main shards": bytes}."""
    columns = {}
    for name, value in row.items():
        if isinstance(value, dict):
            columns.update(flat(value, f"{prefix}{name}."))
        else:
            columns[prefix + name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return columns


def write_csv(all_rows, path):
    """Writes all rows, with a column for each field."""
    lines = [flat(row) for row in all_rows]
    for line in lines:  # peers and runs without a measurement do not have them
        for name in ("formula", "planned", "measured"):
            line.pop(name, None)
    csv_tables.write(lines, path)


def sections(shown):
    """Returns the tables that a page can have between marks, by name."""
    return {"identity": tables.identity(shown), "summary": tables.summary(shown), "by ranks": tables.short_table(shown)}


def write_tables(found, path):
    path.write_text("\n\n".join(f"## {name[0].upper()}{name[1:]}\n\n{text}" for name, text in found.items()) + "\n",
                    encoding="utf-8")


def draw_all(shown, folder, trace, traced, programs):
    """Draws all pictures and returns their files; prints those that are left out."""
    drawings = {"memory by ranks": lambda: pictures_ranks.draw(shown, folder),
                "course of a step": lambda: pictures_step.draw(trace, traced, folder),
                "largest model": lambda: pictures_cap.draw(shown, programs, folder),
                "plan and measurement": lambda: pictures_plan.draw(shown, folder),
                "price": lambda: pictures_price.draw(shown, programs, folder)}
    drawn = []
    for name, draw in drawings.items():
        try:
            drawn += draw()
        except pictures.NoData as error:
            print(f"left out: {name}: {error}")
    return drawn


TRACED = "full shard, fp32, AdamW"


def write_report(all_rows, folder, trace=None, traced=TRACED, programs=measure.PROGRAMS):
    """Writes tables and pictures of rows into `folder` and returns the paths of the pictures. `trace`: the trace of one
    step, or None; `traced`: its model; `programs`: the folder of scaling_probe, which plans the largest models."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shown = suite.Suite(all_rows)
    write_csv(shown.rows, folder / "results.csv")
    write_tables(sections(shown), folder / "tables.md")
    written = csv_tables.write_all(shown, folder)
    drawn = draw_all(shown, folder, trace, traced, pathlib.Path(programs))
    for path in (folder / "results.csv", folder / "tables.md", *written, *drawn):
        print(f"wrote {path}")
    return drawn


class BadMark(Exception):
    """A page has an unknown mark; the text names it."""


def fill(path, text, found):
    """Returns a page's text with each marked place filled."""
    marks = re.findall(r"<!-- (begin|end) (.*?) -->", text)
    if marks[::2] != [("begin", name) for _, name in marks[1::2]]:
        raise BadMark(f"{path}: a <!-- begin NAME --> is not followed by its <!-- end NAME -->")
    for _, name in marks:
        if name not in found:
            raise BadMark(f"{path}: <!-- begin {name} -->: there are {', '.join(found)}")
    return re.sub(r"(<!-- begin (.*?) -->\n).*?(<!-- end \2 -->)",
                  lambda mark: f"{mark[1]}\n{found[mark[2]]}\n\n{mark[3]}", text, flags=re.DOTALL)


def bring_up_to_date(root, shown, drawn):
    """Updates pages, CSV tables and the pictures of pages."""
    found, texts = sections(shown), []
    for name in PAGES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        filled = fill(path, text, found)
        texts.append(filled)
        if filled != text:
            path.write_text(filled, encoding="utf-8")
            print(f"wrote {path}")
    for path in csv_tables.write_all(shown, root / CSV_TABLES):
        print(f"wrote {path}")
    for path in drawn:
        if any(f"pictures/{path.name})" in text for text in texts):
            shutil.copy(path, root / PICTURES / path.name)
            print(f"wrote {root / PICTURES / path.name}")


def main():
    parser = measure.Arguments(__doc__)
    parser.add_argument("results", metavar="RESULTS.jsonl")
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--trace", metavar="FILE", help="of one step, for its course")
    parser.add_argument("--traced", metavar="TEXT", default=TRACED, help="what the trace is of [%(default)s]")
    parser.add_argument("--programs", metavar="FOLDER", default=measure.PROGRAMS, help="the folder of scaling_probe")
    parser.add_argument("--docs", action="store_true", help="bring the documentation up to date")
    options = parser.parse_args()
    measure.use_matplotlib()
    try:
        all_rows = list(rows.read(options.results))
    except rows.BadResults as error:
        parser.error(str(error))
    drawn = write_report(all_rows, options.folder, options.trace, options.traced, options.programs)
    if options.docs:
        try:
            bring_up_to_date(measure.ROOT, suite.Suite(all_rows), drawn)
        except BadMark as error:
            parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
