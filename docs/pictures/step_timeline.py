"""A timeline of one step of three layers: streams, and the waits between them by their numbers in docs/streams.md."""
import diagram
from diagram import BACKWARD, FAINT, FORWARD, INK, MEMORY, UPDATE

# Times have no unit: SCALE inches of the picture are one.
LEFT, SCALE = 1.02, 0.0855
GATHER, COMPUTE, REDUCE, UNITS, ROOT = 3.0, 2.0, 1.2, 0.84, 0.61  # the lower edges of the lanes
HEIGHT, THIN = 0.34, 0.19
SLOT, REDUCED, OPEN = MEMORY["parameter slots"], MEMORY["reduce slots"], "#EBCFA9"

GATHERS = [(2, 6, "root"), (6, 10, "a"), (10, 14, "b"), (16, 20, "c"), (32, 36, "c"), (36, 40, "b"), (46, 50, "a")]
FORWARDS = [(6, 10, "root"), (10, 16, "a"), (16, 22, "b"), (22, 28, "c"), (28, 32, "root")]
BACKWARDS = [(32, 36, "root"), (36, 46, "c"), (46, 56, "b"), (56, 66, "a"), (66, 70, "root")]
UPDATES = [(0, 2, ""), (76, 81, "norm"), (84, 91, "AdamW")]
REDUCES = [(46, 52.5, "c"), (56, 62.5, "b"), (66, 72.5, "a"), (72.5, 76, "root"), (81, 84, "")]
IDLE = [(2, 6), (70, 76), (81, 84)]
OPENED = [(36, 46, "c"), (46, 56, "b"), (56, 66, "a")]
PHASES = [(6, 32, "forward", FORWARD), (32, 70, "backward", BACKWARD), (76, 91, "optimizer", UPDATE)]

UP, DOWN = (COMPUTE + HEIGHT, GATHER), (GATHER, COMPUTE + HEIGHT)
TO_REDUCE, FROM_REDUCE = (COMPUTE, REDUCE + HEIGHT), (REDUCE + HEIGHT, COMPUTE)
WAITS = [  # number, way, from when, to when, where on the arrow the number is
    (1, UP, 2, 2, 0.5), (3, DOWN, 6, 6, 0.5), (3, DOWN, 10, 10, 0.5), (3, DOWN, 14, 16.6, 0.2), (2, UP, 16, 16, 0.45),
    (3, DOWN, 20, 22.6, 0.5), (3, DOWN, 36, 36, 0.5), (3, DOWN, 40, 46.6, 0.4), (2, UP, 46, 46, 0.5),
    (3, DOWN, 50, 56.6, 0.5), (5, TO_REDUCE, 46, 46, 0.5), (6, FROM_REDUCE, 52.5, 56.7, 0.27),
    (5, TO_REDUCE, 56, 56, 0.6), (5, TO_REDUCE, 66, 66, 0.5), (7, FROM_REDUCE, 76, 76, 0.5),
    (12, TO_REDUCE, 81, 81, 0.5), (13, FROM_REDUCE, 84, 84, 0.5), (1, UP, 91, 91, 0.5)]
MEANINGS = [(1, "A gather waits for the optimizer"), (2, "A gather waits for a free slot"),
            (3, "Compute waits for the gather"), (4, "Compute records the slot's release"),
            (5, "A reduction waits for the gradients"), (6, "Compute waits for a free reduce slot"),
            (7, "Compute waits for all reductions"), (12, "The all_reduce waits for the norm's parts"),
            (13, "Compute waits for the all_reduce")]


BELOW = ("One step of layers a, b, c in a root: full shard, prefetch_units = 1, two slots of each kind for the "
         "layers.\n"
         "An arrow is a wait: work at its head starts when work at its tail is done. Hatched: compute is idle")


def at(time):
    return LEFT + SCALE * time


def draw_boxes(axes, boxes, lane, color, ink="white", height=HEIGHT):
    for begin, end, words in boxes:
        diagram.box(axes, at(begin), lane, at(end) - at(begin), height, color, words, diagram.SMALL, ink, edge="white",
                    zorder=2)


def draw_lanes(axes):
    for middle, words in ((GATHER + HEIGHT / 2, "gather\nstream"), (COMPUTE + HEIGHT / 2, "compute"),
                          (REDUCE + HEIGHT / 2, "reduce\nstream"), (UNITS - 0.02, "units in\nbackward")):
        diagram.text(axes, 0.05, middle, words, ha="left")
    for lane in (GATHER, COMPUTE, REDUCE):
        axes.plot([at(0), at(92)], [lane, lane], color=diagram.GRID, linewidth=1, zorder=1)
    diagram.text(axes, at(0), UNITS - 0.02, "from a unit's opening to its closing", diagram.SMALL, FAINT, ha="left")


def draw_waits(axes):
    for which, (source, target), begin, end, part in WAITS:
        diagram.arrow(axes, (at(begin), source), (at(end), target))
        diagram.number(axes, at(begin + part * (end - begin)), source + part * (target - source), which)
    for time in (16, 46):  # where the slot's user ends
        axes.plot(at(time), COMPUTE + HEIGHT, "o", color=INK, markersize=4, zorder=5)
        diagram.text(axes, at(time) - 0.09, COMPUTE + HEIGHT + 0.09, "4", 7.5, fontweight="bold")


def draw_key(axes):
    for index, (which, words) in enumerate(MEANINGS):
        column, row = divmod(index, 3)
        x, y = 0.23 + 2.95 * column, 0.41 - 0.17 * row
        diagram.text(axes, x, y, str(which), diagram.SMALL, ha="right", fontweight="bold")
        diagram.text(axes, x + 0.1, y, words, diagram.SMALL, ha="left")


def draw(folder):
    figure, axes, room = diagram.canvas(4.83, "Gathers and reductions run beside compute", BELOW)
    draw_lanes(axes)
    draw_boxes(axes, GATHERS, GATHER, SLOT, INK)
    draw_boxes(axes, FORWARDS, COMPUTE, FORWARD)
    draw_boxes(axes, BACKWARDS, COMPUTE, BACKWARD)
    draw_boxes(axes, UPDATES, COMPUTE, UPDATE)
    draw_boxes(axes, REDUCES, REDUCE, REDUCED, INK)
    draw_boxes(axes, OPENED, UNITS, OPEN, INK, THIN)
    draw_boxes(axes, [(32, 70, "root")], ROOT, OPEN, INK, THIN)
    for begin, end in IDLE:
        diagram.box(axes, at(begin), COMPUTE, at(end) - at(begin), HEIGHT, "white", edge="#BBBBBB", hatch="////",
                    zorder=1.5)
    for begin, end, words, color in PHASES:
        diagram.text(axes, (at(begin) + at(end)) / 2, room - 0.12, words, color=color, fontweight="bold")
        axes.plot([at(begin) + 0.03, at(end) - 0.03], [room - 0.26] * 2, color=color, linewidth=2)
    draw_waits(axes)
    draw_key(axes)
    return diagram.save(figure, folder, "step-timeline")
