"""Shared parts of all pictures: the width of a README, one meaning for each colour, labels at the ends of lines, plain
tick labels."""
import math
import pathlib

from scaling import quantities

WIDTH = 9  # inches; 900 pixels wide in a page, with text of 11 points
PIXELS = 200  # for each inch, for screens with doubled pixels

# Okabe and Ito's colours, which the colour-blind can distinguish: one for each strategy and its peers.
COLORS = {"full-shard": "#0072B2", "zero2": "#009E73", "zero1": "#E69F00", "replicate": "#D55E00",
          "hybrid-shard": "#CC79A7", "hfsdp": "#56B4E9", "hpz": "#7A5195"}
NAMES = {"full-shard": "full shard", "zero2": "ZeRO-2", "zero1": "ZeRO-1", "replicate": "replicate",
         "hybrid-shard": "hybrid shard", "hfsdp": "HFSDP", "hpz": "hpZ"}
# Categories of memory have other, paler colours than strategies.
CATEGORIES = {"main shards": "#44546A", "optimizer state": "#8497B0", "main gradients": "#C0504D",
              "resident parameters": "#B9A77C", "parameter slots": "#9BBB59", "reduce slots": "#F2A65A",
              "checkpoint staging": "#8E7CC3"}
INK, FAINT, GRID = "#222222", "#777777", "#E4E4E4"


class NoData(Exception):
    """The error of a picture whose data was not measured. The text says what is missing."""


def model_name(model):
    """Returns BERT large for bert-large."""
    family, _, size = model.partition("-")
    return f"{family.upper()} {size}".strip() if family in ("bert", "gpt") else model.upper().replace("-", " ")


def new_figure(height, rows=1, columns=1, **grid):
    """Returns a figure of axes without a box."""
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams.update({
        "font.size": 11, "axes.labelsize": 11, "axes.edgecolor": FAINT, "axes.labelcolor": INK, "xtick.color": INK,
        "ytick.color": INK, "text.color": INK, "svg.hashsalt": "fsdp", "axes.spines.top": False,
        "axes.spines.right": False})
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", **grid)


def say(figure, message, below):
    """Writes the message over the figure, and its subject in smaller letters, in a line or two. Call it before labels
    are placed."""
    height, lines = figure.get_figheight(), 1 + below.count("\n")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - (0.47 + 0.2 * lines) / height))
    for text in (figure.text(0.01, 1 - 0.1 / height, message, va="top", fontsize=15, fontweight="bold"),
                 figure.text(0.01, 1 - 0.42 / height, below, va="top", color=FAINT)):
        room = 0.98 * figure.bbox.width / text.get_window_extent().width
        text.set_fontsize(text.get_fontsize() * min(1, room))


def as_ink(color):
    """Returns the colour dark enough for letters."""
    from matplotlib import colors

    return tuple(0.78 * part for part in colors.to_rgb(color))


def halo():
    """Returns path effects for a text over lines."""
    from matplotlib import patheffects

    return [patheffects.withStroke(linewidth=4, foreground="white")]


def doublings(least, most, most_ticks=12):
    """Returns powers of two from the one at or below `least` to one at or above `most`: every one, or every second, …,
    so that there are at most `most_ticks`."""
    first, last = math.floor(math.log2(least)), math.ceil(math.log2(most))
    step = max(1, math.ceil((last - first) / (most_ticks - 1)))
    return [2.0**power for power in range(first, last + step, step)]


def double_axis(axis, ticks, spelled):
    """Makes an axis (axes.xaxis or yaxis) logarithmic, with exactly these ticks."""
    from matplotlib import ticker

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=2)
    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_major_formatter(ticker.FixedFormatter([spelled(tick) for tick in ticks]))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_tick_params(length=0)


def bytes_axis(axis, ticks):
    double_axis(axis, ticks, quantities.spell_round_bytes)


def grid(axes, which="y"):
    axes.grid(axis=which, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def spread(heights, gap):
    """Returns the heights of labels, moved from `heights` as little as a distance of `gap` requires."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    groups = []  # [sum of wanted bottoms, members]: a group moves as one block
    for index in order:
        groups.append([heights[index], [index]])
        while len(groups) > 1 and _top(groups[-2], gap) > _bottom(groups[-1], gap):
            wanted, members = groups.pop()
            groups[-1][0] += wanted
            groups[-1][1] += members
    placed = [0.0] * len(heights)
    for group in groups:
        for rank, index in enumerate(group[1]):
            placed[index] = _bottom(group, gap) + rank * gap
    return placed


def _bottom(group, gap):
    wanted, members = group
    return wanted / len(members) - gap * (len(members) - 1) / 2


def _top(group, gap):
    return _bottom(group, gap) + gap * len(group[1])


def label_ends(axes, labels, gap=0.052, shift=10):
    """Writes each (x, y, text, colour) to the right of its point. Labels that would touch move apart, with a thin line
    to the point. Call it when the axes have their limits."""
    axes.figure.draw_without_rendering()  # places the axes, so that their height is known
    into = axes.transData + axes.transAxes.inverted()
    places = [into.transform((x, y)) for x, y, _, _ in labels]
    heights = spread([place[1] for place in places], gap)
    for (x, y, text, color), (left, wanted), height in zip(labels, places, heights):
        moved = abs(height - wanted) > gap / 3
        axes.annotate(text, (x, y), xytext=(shift + 8 * moved, (height - wanted) * axes.bbox.height * 72 /
                                            axes.figure.dpi), textcoords="offset points",
                      color=as_ink(color), va="center", ha="left", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0,
                                  "shrinkB": 3} if moved else None)


def save(figure, folder, name):
    """Writes NAME.png (with few colours, a third of the size) and NAME.svg, and returns their paths."""
    from PIL import Image
    from matplotlib import pyplot

    paths = [pathlib.Path(folder) / f"{name}.{suffix}" for suffix in ("png", "svg")]
    figure.savefig(paths[0], dpi=PIXELS)
    with Image.open(paths[0]) as drawn:
        few = drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(paths[0], optimize=True)
    figure.savefig(paths[1], metadata={"Date": None})
    pyplot.close(figure)
    return paths
