"""Makes CSV tables of a run of the suite: all cells, bytes by phase, buffers beside FSDP2's, unmeasured runs.
Sizes are MiB of one rank. An empty field does not apply or was not measured."""
import csv
import pathlib

from scaling import suite, tables


def mib(size):
    return round(size / 2**20, 1)


def ms(time):
    return round(time, 2)


def cells(shown):
    """Returns a line for each cell, with the growth of its peers' processes."""
    return [cell(shown, row) for model in shown.models
            for row in sorted((row for row in shown.ours if row["model"] == model), key=suite.in_order)]


def cell(shown, row):
    line = {"cell": row["cell"], "status": row["status"], "parameters": row["parameters"], "units": row["units"]}
    planned = row["planned"]
    line |= {"planned": mib(planned["device peak"])} if planned else {}
    if suite.is_measured(row):
        line |= {"measured": mib(suite.device_peak(row)), "of the plan": round(suite.of_plan(row), 4),
                 "state, bytes a parameter": round(suite.state_bytes(row) / row["parameters"], 2),
                 "process": mib(suite.growth(row)), "step ms": ms(suite.step_ms(row)),
                 "exposed ms": ms(row["measured"]["exposed ms"])}
    line |= {"sent": mib(planned["sent"])} if planned else {}
    return line | {f"{peer['by']} process": grown(peer) for peer in shown.peers_of(row)}


def grown(peer):
    return mib(suite.growth(peer)) if suite.is_measured(peer) else tables.grown(peer)


def phases(shown):
    """Returns a rank's bytes in each phase, for each measured cell without options: a line for each category."""
    lines = []
    for row in shown.measured:
        if not suite.is_plain(row):
            continue
        by_phase = row["measured"]["phases"]
        for category in next(iter(by_phase.values())):
            sizes = {phase: mib(sizes[category]) for phase, sizes in by_phase.items()}
            if any(sizes.values()):
                lines.append({"cell": row["cell"], "category": category, **sizes})
    return lines


def buffers(shown):
    """Returns the peak of full shard's engine buffers, beside the buffers that FSDP2's own tracker counts, and both as
    parts of the state by formula."""
    lines = []
    for peer in shown.rows:
        own = shown.plain(peer["model"], peer["strategy"], peer["ranks"]) if peer["by"] == "FSDP2" else None
        if not suite.is_measured(own) or not suite.is_measured(peer) or "buffers peak" not in peer["measured"]:
            continue
        state = own["formula"]["step"]
        ours, theirs = suite.engine_bytes(own["measured"]["phases"]["backward peak"]), peer["measured"]["buffers peak"]
        lines.append({"cell": own["cell"], "ours": mib(ours), "ours of the formula": round(ours / state, 2),
                      "FSDP2": mib(theirs), "FSDP2 of the formula": round(theirs / state, 2)})
    return lines


def left_out(shown):
    """Returns cells that were only planned, and peers that could not run, with the reason."""
    return [{"cell": row["cell"], "by": row["by"], "status": row["status"],
             "why": (row["why"] or "").split(". ")[0].strip()} for row in shown.rows if not suite.is_measured(row)]


TABLES = {"cells.csv": cells, "phases.csv": phases, "buffers.csv": buffers, "left-out.csv": left_out}


def write(lines, path):
    """Writes lines, which are dictionaries; each name is a column."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        columns = list(dict.fromkeys(name for line in lines for name in line))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def write_all(shown, folder):
    """Writes all tables into `folder` and returns their paths."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        write(table(shown), folder / name)
    return [folder / name for name in TABLES]
