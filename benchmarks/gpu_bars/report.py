"""Writes the results of tools/bench gpu: a file for programs and a table for people, named by device and date."""
import json
import re


def number(value, digits=3):
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def verdict(row):
    holds = row["details"]["holds"]
    return "–" if holds is None else "holds" if holds else "**missed**"


def line_of(row):
    details = row["details"]
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3g} ({row['min']:.3g}–{row['max']:.3g})"
    least = "–" if details["least"] is None else f"≥ {details['least']:.3g}"
    peer = row["peer_name"] if row["peer"] is None else f"{row['peer_name']}: {number(row['peer'])}"
    ours = "–" if row["ours"] is None else f"{number(row['ours'])} {row['unit']}"
    cells = [details["bar"], row["case"], str(row["ranks"]), ours, peer or "–", ratio, least,
             verdict(row) if details["least"] is not None else details.get("said", "–")]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def table(told):
    """Returns the table for `told`, which is the content of the JSON file."""
    known = ", ".join(f"{name} {number(value)} {unit}" for (name, value), unit in
                      zip(told["calibration"].items(), ("GB/s", "TFLOP/s"))) or "not measured"
    lines = [f"# {told['device']}, {told['date']}", "",
             f"`tools/bench gpu`; CUDA {told['cuda'] or '–'}, driver {told['driver'] or '–'}, NCCL "
             f"{told['nccl'] or '–'}. The machine in the same run: {known}. Medians of rounds in turn, ratios with "
             "their smallest and largest round; over 1 ours is better.", "",
             "| bar | case | ranks | ours | peer | ratio | wanted | |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    lines += [line_of(row) for row in told["rows"]]
    lines += [""] + [f"- {each['name']}: {each['state']}{': ' + each['detail'] if each['detail'] else ''}"
                     for each in told["parts"]]
    return "\n".join(lines) + "\n"


def write(folder, told):
    """Writes both files and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"[^a-z0-9]+", "-", told["device"].lower()).strip("-")
    stem = folder / f"gpu-{device}-{told['date']}"
    paths = [stem.with_name(stem.name + suffix) for suffix in (".json", ".md")]
    paths[0].write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    paths[1].write_text(table(told), encoding="utf-8")
    return paths
