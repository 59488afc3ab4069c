"""Draws memory per rank as a function of the number of ranks: lines show the formula of the state, points the growth of
processes."""
from scaling import cells, pictures, quantities, rows, suite

LINES = {"replicate": "16Ψ", "zero1": "8Ψ + 8Ψ/N", "zero2": "4Ψ + 12Ψ/N", "full-shard": "16Ψ/N"}
MOST_RANKS = 1024
SAVING_RANKS = (4, 8)


class Expected:
    """The memory of a rank by formula: state before the optimizer's step, and activations."""

    def __init__(self, shown, model):
        self.model, self.parameters = model, shown.parameters[model]
        planned = [row["planned"]["torch peak"] for row in shown.ours
                   if row["model"] == model and row["planned"] and suite.is_plain(row)]
        self.activations = max(planned, default=0)

    def at(self, strategy, ranks):
        """Returns the bytes by docs/memory.md."""
        return rows.formula(cells.Cell(self.model, strategy, ranks), self.parameters)["step"] + self.activations


def draw_formula(axes, expected):
    counts = sorted({round(2 ** (quarter / 4)) for quarter in range(41)})
    for strategy in LINES:
        axes.plot(counts, [expected.at(strategy, ranks) for ranks in counts], color=pictures.COLORS[strategy],
                  linewidth=1.6, alpha=0.75, zorder=2)
    axes.axhline(expected.activations, color=pictures.FAINT, linewidth=1, linestyle=(0, (2, 3)))


def label_formula(axes, expected):
    labels = [(MOST_RANKS, expected.at(strategy, MOST_RANKS), f"{pictures.NAMES[strategy]}: {formula}",
               pictures.COLORS[strategy]) for strategy, formula in LINES.items()]
    pictures.label_ends(axes, labels)
    axes.annotate(f"activations, whatever N is: {quantities.spell_bytes(expected.activations)}",
                  (1, expected.activations), xytext=(4, 4), textcoords="offset points", color=pictures.FAINT)


def draw_points(axes, shown, model):
    """Draws our points, filled: circles for real processes, diamonds for simulated ranks. Returns their rows."""
    drawn = []
    for row in shown.measured:
        if row["model"] != model or row["strategy"] not in LINES or suite.options_of(row) or row["replicate"] > 1:
            continue
        drawn.append(row)
        axes.plot(row["ranks"], suite.growth(row), "D" if row["simulated"] else "o", markersize=7.5,
                  color=pictures.COLORS[row["strategy"]], markeredgecolor="white", markeredgewidth=0.8, zorder=4)
    return drawn


def label_simulated(axes, drawn):
    found = sorted((row for row in drawn if row["simulated"]), key=lambda row: row["ranks"])
    if found:
        axes.annotate("one process, its peers simulated:\nunits are gathered whole",
                      (found[-1]["ranks"], suite.growth(found[-1])), xytext=(4, 9), textcoords="offset points",
                      ha="right", va="bottom", color=pictures.as_ink(pictures.COLORS[found[-1]["strategy"]]))


def draw_peers(axes, shown, model):
    """Draws the peers as hollow squares in the colour of their strategy, with the name at the last point."""
    labels, drawn = [], []
    for by in suite.PEERS:
        found = [row for row in shown.of_model(model) if row["by"] == by and suite.is_measured(row)]
        found.sort(key=lambda row: row["ranks"])
        if not found:
            continue
        drawn += found
        color = pictures.COLORS[found[0]["strategy"]]
        axes.plot([row["ranks"] for row in found], [suite.growth(row) for row in found], "s--", markersize=6.5,
                  color=color, linewidth=0.8, markerfacecolor="white", markeredgewidth=1.6, zorder=3)
        last = found[-1]
        labels.append((last["ranks"], suite.growth(last), by, color))
    return labels, drawn


def draw_savings(axes, shown, model):
    for ranks in SAVING_RANKS:
        saved = shown.saved(model, ranks)
        if saved is None:
            continue
        ddp = suite.growth(shown.plain(model, suite.REPLICATE, ranks, "DDP"))
        own = suite.growth(shown.plain(model, suite.FULL_SHARD, ranks))
        axes.annotate("", (ranks, own), (ranks, ddp),
                      arrowprops={"arrowstyle": "-|>", "color": pictures.INK, "linewidth": 1.3, "shrinkA": 6,
                                  "shrinkB": 5}, zorder=3)
        axes.annotate(f"−{quantities.spell_percent(saved)}", (ranks, own), xytext=(0, -17),
                      textcoords="offset points", ha="center", va="center", fontweight="bold", fontsize=13,
                      bbox={"boxstyle": "square,pad=0.1", "color": "white"}, zorder=5)


def draw_key(axes):
    """Draws the key of the marks, at a place without lines."""
    for row, (mark, filled, text) in enumerate((("o", True, "ours"),
                                                ("s", False, "PyTorch's, the same strategy in the same colour"))):
        height = 0.97 - 0.055 * row
        axes.plot(0.47, height, mark, transform=axes.transAxes, color=pictures.INK, markersize=6.5,
                  markerfacecolor=pictures.INK if filled else "white", markeredgewidth=1.4, clip_on=False)
        axes.text(0.49, height, text, transform=axes.transAxes, va="center")


def message(shown, model):
    saved = [(ranks, shown.saved(model, ranks)) for ranks in SAVING_RANKS]
    told = [(quantities.spell_percent(share), ranks) for ranks, share in saved if share is not None]
    if not told:
        return "Full shard: memory falls with every rank"
    further = "".join(f", {share} on {ranks}" for share, ranks in told[1:])
    return f"Full shard saves {told[0][0]} of DDP's memory on {told[0][1]} ranks{further}"


def draw(shown, folder):
    """Draws the picture and returns its files. Raises pictures.NoData."""
    model = shown.shown_model()
    if model is None:
        raise pictures.NoData("neither full shard nor DDP was measured")
    expected = Expected(shown, model)
    figure, axes = pictures.new_figure(5.6)
    pictures.say(figure, message(shown, model),
                 "What one rank's process grows to (points), and its state by formula with activations (lines).\n"
                 f"{pictures.model_name(model)}, Ψ = {quantities.spell_count(expected.parameters)} parameters, "
                 "fp32, AdamW")
    draw_formula(axes, expected)
    own = draw_points(axes, shown, model)
    labels, theirs = draw_peers(axes, shown, model)
    sizes = [suite.growth(row) for row in own + theirs]
    low, high = min([expected.at("full-shard", MOST_RANKS), *sizes]) * 0.72, max(sizes) * 1.6
    pictures.double_axis(axes.xaxis, pictures.doublings(1, MOST_RANKS), "{:,.0f}".format)
    pictures.bytes_axis(axes.yaxis, [tick for tick in pictures.doublings(low, high) if low <= tick <= high])
    axes.set_xlim(0.85, MOST_RANKS * 1.1)
    axes.set_ylim(low, high)
    pictures.grid(axes)
    axes.set_xlabel("ranks (N)")
    pictures.label_ends(axes, labels)
    label_formula(axes, expected)
    draw_savings(axes, shown, model)
    label_simulated(axes, own)
    draw_key(axes)
    return pictures.save(figure, folder, "scaling-ranks")
