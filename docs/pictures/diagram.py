"""Shapes for the diagrams of docs/pictures: a canvas in inches, boxes, arrows and numbers in circles, in the fonts and
colours of benchmarks/scaling/pictures.py."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scaling import pictures  # noqa: E402

WIDTH = pictures.WIDTH
INK, FAINT, GRID = pictures.INK, pictures.FAINT, pictures.GRID
PAPER = "#F6F6F4"  # of frames
FORWARD, BACKWARD, UPDATE = "#2F6FAF", "#C77D2B", "#6B6B6B"  # as in pictures_step
MEMORY = pictures.CATEGORIES
TEXT, SMALL = 10, 8.5  # points
MARGIN = 0.08  # below


def canvas(height, message, below):
    """Returns a figure with its message, axes in inches below it, and their height."""
    figure, axes = pictures.new_figure(height)
    pictures.say(figure, message, below)
    rect = figure.get_layout_engine().get()["rect"]
    room = rect[3] * height - MARGIN
    figure.get_layout_engine().set(w_pad=0, h_pad=0)
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(-MARGIN, room)
    return figure, axes, room


def text(axes, x, y, words, size=TEXT, color=INK, ha="center", va="center", **more):
    if va == "center" and "\n" not in words:  # by the baseline, which neighbours share
        y, va = y - 0.36 * size / 72, "baseline"
    axes.text(x, y, words, fontsize=size, color=color, ha=ha, va=va, linespacing=1.3, **more)


def box(axes, x, y, width, height, color, words="", size=TEXT, ink="white", edge=None, **more):
    """From its lower left corner."""
    from matplotlib import patches

    axes.add_patch(patches.Rectangle((x, y), width, height, facecolor=color, edgecolor=edge or color,
                                     linewidth=1 if edge else 0, **more))
    if words:
        text(axes, x + width / 2, y + height / 2, words, size, ink)


def frame(axes, x, y, width, height, color=PAPER, edge=GRID, **more):
    """A rectangle with round corners, behind boxes."""
    from matplotlib import patches

    axes.add_patch(patches.FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08",
                                          facecolor=color, edgecolor=edge, linewidth=1, **{"zorder": 0.5, **more}))


def arrow(axes, begin, end, color=INK, width=1.2, bend=0, **more):
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0,
                                              "shrinkB": 0, "mutation_scale": 9,
                                              "connectionstyle": f"arc3,rad={bend}", **more}, zorder=4)


def number(axes, x, y, words):
    from matplotlib import patches

    axes.add_patch(patches.Circle((x, y), 0.1, facecolor="white", edgecolor=INK, linewidth=1, zorder=6))
    text(axes, x, y, str(words), 7.5, fontweight="bold", zorder=7)


def save(figure, folder, name):
    """Writes NAME.svg and returns its path."""
    from matplotlib import pyplot

    path = pathlib.Path(folder) / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
