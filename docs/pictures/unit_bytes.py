"""One unit's bytes, from the module's tensors to the optimizer's state, and what frees each. docs/architecture.md."""
import diagram
from diagram import FAINT, INK, MEMORY, SMALL

TORCH = "#9A9A9A"
LEFT, LEFT_WIDTH = 0.05, 1.3
MIDDLE, MIDDLE_WIDTH, FREED = 2.05, 3.95, 2.72  # FREED: where that column begins
RIGHT, RIGHT_WIDTH = 6.95, 1.9
ROW, STRIPE = 0.4, 0.09
WHOLE = [  # colour, what it is, when it is so, when it is freed
    (MEMORY["parameter slots"], "slot of the pool", "full-shard, hybrid-shard, hfsdp, hpz", "by reshard"),
    (MEMORY["main shards"], "the ranks' shards, mapped", "full-shard, hybrid-shard; fp32, one host", "needs no memory"),
    (MEMORY["resident parameters"], "resident copy", "zero1, zero2; replicate below fp32", "with the engine"),
    (MEMORY["main shards"], "the main shards themselves", "replicate or one rank, fp32", "needs no memory")]
ARRIVING = [
    (MEMORY["reduce slots"], "slot of the pool", "the usual case: gradients are copied", "after its reduction"),
    (TORCH, "LibTorch's tensor, zero-copy", "over half of a segment, 1 MiB and more", "after its reduction"),
    (MEMORY["main gradients"], "the main gradient itself", "zero1 and replicate, fp32", "needs no memory")]


BELOW = ("A unit uses one line of the upper frame, and one or two of the lower. A freed slot stays in its pool.\n"
         "Colours are the categories of memory_plan(); grey is LibTorch's memory")


def draw_choices(axes, y, head, choices):
    """A frame whose lower edge is y; returns its middle."""
    height = ROW * len(choices) + 0.36
    diagram.frame(axes, MIDDLE, y, MIDDLE_WIDTH, height)
    top = y + height - 0.17
    diagram.text(axes, MIDDLE + 0.12, top, head, ha="left", fontweight="bold")
    diagram.text(axes, MIDDLE + FREED, top, "freed", SMALL, FAINT, ha="left")
    for index, (color, words, where, freed) in enumerate(choices):
        middle = top - 0.2 - ROW * (index + 0.5) + 0.03
        diagram.box(axes, MIDDLE + 0.12, middle - 0.15, STRIPE, 0.3, color)
        diagram.text(axes, MIDDLE + 0.3, middle + 0.08, words, 9.5, ha="left")
        diagram.text(axes, MIDDLE + 0.3, middle - 0.09, where, 8, FAINT, ha="left")
        diagram.text(axes, MIDDLE + FREED, middle + 0.08, freed, SMALL, ha="left")
    return y + height / 2


def draw_left(axes, middle, head, below, color=None):
    diagram.frame(axes, LEFT, middle - 0.42, LEFT_WIDTH, 0.84)
    if color:
        diagram.box(axes, LEFT + 0.1, middle - 0.3, STRIPE, 0.6, color)
    x = LEFT + (0.28 if color else 0.14)
    diagram.text(axes, x, middle + 0.17, head, fontweight="bold", ha="left")
    diagram.text(axes, x, middle - 0.12, below, 8, FAINT, ha="left")


def draw_main(axes, middle, name, freed):
    diagram.box(axes, RIGHT, middle - 0.3, RIGHT_WIDTH, 0.6, MEMORY[name])
    ink = INK if name == "optimizer state" else "white"  # that one is pale
    diagram.text(axes, RIGHT + RIGHT_WIDTH / 2, middle + 0.1, name, color=ink, fontweight="bold")
    diagram.text(axes, RIGHT + RIGHT_WIDTH / 2, middle - 0.12, freed, SMALL, ink)


def label(axes, begin, end, words, **more):
    """An arrow with its words over it, or beside it."""
    diagram.arrow(axes, begin, end, **more)
    if begin[1] == end[1]:
        diagram.text(axes, (begin[0] + end[0]) / 2, begin[1] + 0.08, words, SMALL, va="bottom")
    else:
        diagram.text(axes, begin[0] + 0.1, (begin[1] + end[1]) / 2, words, SMALL, ha="left")


def draw(folder):
    figure, axes, room = diagram.canvas(5.35, "One unit's bytes, from the module's tensors to the optimizer", BELOW)
    upper = draw_choices(axes, room - 2.08, "the unit's parameters, whole", WHOLE)
    lower = draw_choices(axes, 0.12, "the unit's gradients, whole", ARRIVING)
    draw_left(axes, upper, "parameter", "a view, without\nbytes of its own")
    draw_left(axes, lower, "gradient", "a tensor that\nautograd makes", TORCH)
    diagram.frame(axes, RIGHT - 0.1, 0.12, RIGHT_WIDTH + 0.19, room - 0.24, "white", "#BBBBBB",
                  linestyle="--")
    diagram.text(axes, RIGHT + RIGHT_WIDTH / 2, room - 0.3, "fp32; with cpu_offload", SMALL, FAINT)
    diagram.text(axes, RIGHT + RIGHT_WIDTH / 2, room - 0.46, "in the host's memory", SMALL, FAINT)
    center = (upper + lower) / 2 - 0.03
    draw_main(axes, upper, "main shards", "freed with the engine")
    draw_main(axes, center, "optimizer state", "freed with the optimizer")
    draw_main(axes, lower, "main gradients", "freed by zero_grad")
    label(axes, (RIGHT, upper), (MIDDLE + MIDDLE_WIDTH, upper), "unshard:\nall_gather")
    label(axes, (MIDDLE, upper), (LEFT + LEFT_WIDTH, upper), "bind")
    label(axes, (LEFT + LEFT_WIDTH, lower), (MIDDLE, lower), "capture")
    label(axes, (MIDDLE + MIDDLE_WIDTH, lower), (RIGHT, lower), "close:\nreduce")
    label(axes, (LEFT + LEFT_WIDTH / 2, upper - 0.42), (LEFT + LEFT_WIDTH / 2, lower + 0.42), "forward,\nbackward")
    x = RIGHT + RIGHT_WIDTH / 2
    label(axes, (x, lower + 0.3), (x, center - 0.3), "step")
    label(axes, (x, center + 0.3), (x, upper - 0.3), "step")
    return diagram.save(figure, folder, "unit-bytes")
