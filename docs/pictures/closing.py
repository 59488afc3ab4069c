"""The closing rule: the backward graphs of two ranks, which differ inside a unit. docs/closing.md."""
import diagram
from diagram import BACKWARD, FORWARD, INK, SMALL, UPDATE

MISSING = "#B03A2E"
ONE, TWO, THREE, FOUR, FIVE, SIX, LOSS = 1.75, 3.1, 3.95, 5.4, 6.1, 6.8, 8.5  # where nodes are, from left to right
CLOSINGS = [(4.62, "At node 3: b's begin is 4 > 3.\nBoth ranks close b."),
            (2.38, "At node 1: a's begin is 2 > 1.\nBoth ranks close a.")]
# words, left edge, width, how far below and above the nodes, colour
FRAMES = [("root: begin = 1", 0.95, 6.6, 0.82, 0.98, "white"),
          ("unit a: begin = 2", 2.65, 1.72, 0.72, 0.68, diagram.PAPER),
          ("unit b: begin = 4", 4.87, 2.5, 0.72, 0.68, diagram.PAPER)]
BELOW = ("Forward numbers the nodes; backward runs them in descending number, from the right to the left.\n"
         "Rank 1 leaves a branch of b out: its w2 gets no gradient, and b closes at the same place as on rank 0")


def node(axes, x, y, which, color):
    from matplotlib import patches

    axes.add_patch(patches.Circle((x, y), 0.17, facecolor=color, edgecolor="white", linewidth=1, zorder=5))
    diagram.text(axes, x, y, str(which), 9.5, "white", fontweight="bold", zorder=6)


def parameter(axes, x, y, name, missing=False):
    """A weight below its node at (x, y), where its gradient arrives."""
    color = MISSING if missing else INK
    diagram.box(axes, x - 0.19, y - 0.63, 0.38, 0.23, "white", edge=color, linestyle="--" if missing else "-", zorder=3)
    diagram.text(axes, x, y - 0.515, name, SMALL, color)
    if missing:
        diagram.text(axes, x + 0.27, y - 0.515, "zero-filled", SMALL, color, ha="left")
    else:
        diagram.arrow(axes, (x, y - 0.17), (x, y - 0.4), width=1)


def edge(axes, y, begin, end, bend=0):
    diagram.arrow(axes, (begin, y), (end, y), BACKWARD, bend=bend, shrinkA=13, shrinkB=13)


def draw_rank(axes, y, name, of_b, loss):
    """`of_b`: (x, number) of the nodes of unit b."""
    diagram.text(axes, 0.05, y, name, ha="left", fontweight="bold")
    for order, (words, x, width, below, above, color) in enumerate(FRAMES):
        diagram.frame(axes, x, y - below, width, below + above, color, "#BBBBBB", zorder=0.3 + 0.1 * order)
        diagram.text(axes, x + 0.1, y + above - 0.15, words, 9, ha="left", fontweight="bold")
    for x, which in [(TWO, 2), (THREE, 3), *of_b]:
        node(axes, x, y, which, FORWARD)
    for x, which in [(ONE, 1), (LOSS, loss)]:
        node(axes, x, y, which, UPDATE)
    diagram.text(axes, LOSS, y - 0.3, "loss", SMALL)
    parameter(axes, TWO, y, "w0")
    for begin, end in ((THREE, TWO), (TWO, ONE), (FOUR, THREE), (LOSS, of_b[-1][0])):
        edge(axes, y, begin, end)


def draw(folder):
    figure, axes, room = diagram.canvas(5.45, "At a node numbered s, a call with begin > s is over", BELOW)
    upper, lower = room - 1.05, 0.84
    draw_rank(axes, upper, "rank 0", [(FOUR, 4), (FIVE, 5), (SIX, 6)], 7)
    for begin, end, bend in ((SIX, FIVE, 0), (SIX, FOUR, 0.38), (FIVE, THREE, 0.27)):
        edge(axes, upper, begin, end, bend)
    draw_rank(axes, lower, "rank 1", [(FOUR, 4)], 5)
    parameter(axes, FOUR, upper, "w1")
    parameter(axes, FIVE, upper, "w2")
    parameter(axes, FOUR, lower, "w1")
    parameter(axes, FIVE, lower, "w2", missing=True)
    middle = (upper - 0.82 + lower + 0.98) / 2
    for x, words in CLOSINGS:
        axes.plot([x, x], [0.02, room - 0.02], color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
        diagram.text(axes, x, middle, words, zorder=8, bbox={"facecolor": "white", "edgecolor": "white", "pad": 3})
    diagram.text(axes, 7.05, middle, "At the end of backward\nboth ranks close the root.")
    return diagram.save(figure, folder, "closing")
