"""Draws the largest model that trains against the memory limit of a rank: planned as lines, measured as points."""
import dataclasses

from scaling import largest, pictures, quantities, suite

CAPS = [2**power for power in range(29, 35)]  # 512 MiB to 16 GiB
MESSAGE_CAP = 2**34


@dataclasses.dataclass(frozen=True)
class Line:
    strategy: str
    ranks: int
    recompute: bool = False

    @property
    def name(self):
        name = pictures.NAMES[self.strategy]
        if self.strategy == suite.REPLICATE:
            return f"1 rank, or {name}"
        return f"{name}, {self.ranks} ranks" + "\nand recompute" * self.recompute


LINES = [Line("replicate", 1), Line("zero1", 8), Line("zero2", 8), Line("full-shard", 2), Line("full-shard", 4),
         Line("full-shard", 8), Line("full-shard", 8, recompute=True)]


def draw_line(axes, planner, line):
    """Draws a line and returns its end, and what fits into MESSAGE_CAP."""
    depths = largest.Depths(planner, line.strategy, line.ranks, line.recompute)
    found = [(cap, depths.largest(cap)) for cap in CAPS]
    found = [(cap, planned.parameters) for cap, planned in found if planned]
    if not found:
        return None, 0
    axes.plot(*zip(*found), color=pictures.COLORS[line.strategy], linewidth=1.8,
              linestyle="--" if line.recompute else "-")
    return found[-1], dict(found).get(MESSAGE_CAP, 0)


def belongs(row, line):
    alone = line.strategy == suite.REPLICATE  # equal on any number of ranks
    return (row["strategy"] == line.strategy and (alone or row["ranks"] == line.ranks) and
            row["replicate"] == 1 and not row["simulated"] and
            suite.options_of(row) == ["recompute"] * line.recompute)


def draw_points(axes, shown):
    """Draws a point for each model that trained, at the memory that it used."""
    drawn = []
    for line in LINES:
        for row in shown.measured:
            if not belongs(row, line) or not row["model"].startswith("bert"):
                continue
            if CAPS[0] <= suite.device_peak(row) <= CAPS[-1]:
                drawn.append(row)
                axes.plot(suite.device_peak(row), row["parameters"], "o", color=pictures.COLORS[line.strategy],
                          markersize=7, markeredgecolor="white", zorder=4)
    return drawn


def name_models(axes, shown, drawn):
    """Writes the name of each model after its last point."""
    for model in sorted({row["model"] for row in drawn}):
        most = max(suite.device_peak(row) for row in drawn if row["model"] == model)
        axes.annotate(pictures.model_name(model), (most, shown.parameters[model]), xytext=(8, -1),
                      textcoords="offset points", va="center", path_effects=pictures.halo(), zorder=5)


def spell_parameters(count):
    return f"{count / 1e9:g} billion" if count >= 1e9 else f"{count / 1e6:g} M"


def draw(shown, programs, folder):
    """Draws the picture and returns its files. `programs`: the folder of scaling_probe; its plans are stored in
    `folder`. Raises pictures.NoData."""
    try:
        planner = largest.Planner(programs / "scaling_probe", folder / "largest.json")
        print("planning the largest models: a minute; what was planned is remembered")
        figure, axes = pictures.new_figure(5.6)
        ends, at_cap = {}, {}
        for line in LINES:
            ends[line], at_cap[line] = draw_line(axes, planner, line)
    except largest.NoPlan as error:
        raise pictures.NoData(str(error)) from None
    drawn = draw_points(axes, shown)
    ends = {line: end for line, end in ends.items() if end}
    low = min([1e9 / 4, *(row["parameters"] for row in drawn)]) * 0.75
    high = max(end[1] for end in ends.values()) * 1.15
    pictures.bytes_axis(axes.xaxis, CAPS)
    pictures.double_axis(axes.yaxis, [1e9 * 2**power for power in range(-6, 8) if low <= 1e9 * 2**power <= high],
                         spell_parameters)
    axes.set_xlim(CAPS[0] * 0.93, CAPS[-1])
    axes.set_ylim(low, high)
    axes.set_xlabel("memory that one rank may hold")
    axes.set_ylabel("parameters")
    pictures.grid(axes, "both")
    pictures.say(figure, message(at_cap),
                 "Lines: BERT large with as many layers as the plan lets fit, 1×128 tokens, fp32, AdamW.\n"
                 "Points: models that trained, at the memory that they took")
    name_models(axes, shown, drawn)
    pictures.label_ends(axes, [(*ends[line], line.name, pictures.COLORS[line.strategy]) for line in ends])
    return pictures.save(figure, folder, "scaling-cap")


def message(at_cap):
    one, eight = at_cap[Line("replicate", 1)], at_cap[Line("full-shard", 8)]
    cap = quantities.spell_round_bytes(MESSAGE_CAP)
    if not one or not eight:
        return "The largest model that trains"
    return (f"With {cap} each, 1 rank trains {quantities.spell_count(one)} parameters, "
            f"8 ranks {quantities.spell_count(eight)}")
