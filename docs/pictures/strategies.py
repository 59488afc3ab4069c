"""A grid of ranks and state under each strategy, with the rows of src/plan/placement.cpp. docs/strategies.md."""
import re

import diagram
from diagram import INK, MEMORY, pictures

GROUPS, SHARD = 2, 2
RANKS = GROUPS * SHARD
KINDS = [("parameters", 4, MEMORY["main shards"]), ("gradients", 4, MEMORY["main gradients"]),
         ("optimizer state", 8, MEMORY["optimizer state"])]  # bytes of each parameter in fp32, with AdamW
OTHER_NAMES = {"full-shard": "ZeRO-3, FSDP", "zero2": "ZeRO-2", "zero1": "ZeRO-1", "replicate": "DDP",
               "hybrid-shard": "HSDP", "hpz": "ZeRO++ hpZ"}
LEFT, BLOCK, RANK, BAR = 1.42, 2.22, 0.5, 0.44  # inches: names, a kind, a rank, what it holds
BELOW = ("4 ranks in 2 groups, Ψ parameters, each cut into 4 pieces; coloured: held by the rank before the "
         "optimizer's step.\nBytes: fp32 with AdamW, without the units in flight")
TOP, ROW, HEIGHT = 3.55, 0.52, 0.3


def rows():
    """(name, placements of parameters, gradients and optimizer state) of the table."""
    code = (diagram.ROOT / "src/plan/placement.cpp").read_text(encoding="utf-8")
    table = code[code.index("kTable[]"):code.index("};", code.index("kTable[]"))]
    return [(name, re.findall(r"k\w+", cut)) for name, cut in re.findall(r'"([a-z0-9-]+)", \{(.*?)\}', table)]


def piece(placement, inside_first, rank):
    """Begin and length of what a rank has of 1: as UnitCollectives::piece, [Note: pieces of pieces]."""
    group, member = divmod(rank, SHARD)
    if placement == "kReplicate":
        return 0, 1
    if placement == "kShardGroup":
        return member / SHARD, 1 / SHARD
    assert placement == "kShardWorld", placement
    return member / SHARD + group / RANKS if inside_first else rank / RANKS, 1 / RANKS


def rank_x(kind, rank):
    return LEFT + BLOCK * kind + RANK * rank + 0.09 * (rank // SHARD)


def draw_row(axes, y, name, cut):
    diagram.text(axes, 0.05, y + HEIGHT / 2 + (0.08 if name in OTHER_NAMES else 0), name, ha="left", fontweight="bold")
    diagram.text(axes, 0.05, y + HEIGHT / 2 - 0.1, OTHER_NAMES.get(name, ""), diagram.SMALL, diagram.FAINT, ha="left")
    held = 0
    for kind, ((_, size, color), placement) in enumerate(zip(KINDS, cut)):
        for rank in range(RANKS):
            begin, length = piece(placement, "kShardGroup" in cut, rank)
            x = rank_x(kind, rank)
            diagram.box(axes, x, y, BAR, HEIGHT, "#EFEFEF")
            diagram.box(axes, x + BAR * begin, y, BAR * length, HEIGHT, color)
            for part in range(1, RANKS):
                axes.plot([x + BAR * part / RANKS] * 2, [y, y + HEIGHT], color="white", linewidth=0.8)
        held += size * length
    diagram.text(axes, LEFT + BLOCK * 3 + 0.36, y + HEIGHT / 2, f"{held:g}Ψ", fontweight="bold")


def draw_heads(axes):
    for kind, (words, _, color) in enumerate(KINDS):
        middle = (rank_x(kind, 0) + rank_x(kind, RANKS - 1) + BAR) / 2
        diagram.text(axes, middle, TOP + 0.34, words, color=pictures.as_ink(color), fontweight="bold")
        for group in range(GROUPS):
            begin, end = rank_x(kind, group * SHARD), rank_x(kind, group * SHARD + SHARD - 1) + BAR
            axes.plot([begin, end], [TOP + 0.02] * 2, color=INK, linewidth=1)
            words = f"ranks {group * SHARD}, {group * SHARD + 1}"
            diagram.text(axes, (begin + end) / 2, TOP + 0.12, words, diagram.SMALL, diagram.FAINT)
    diagram.text(axes, LEFT + BLOCK * 3 + 0.36, TOP + 0.25, "bytes\nof a rank")


def draw(folder):
    figure, axes, _ = diagram.canvas(5.1, "What each rank holds under each strategy", BELOW)
    draw_heads(axes)
    for index, (name, cut) in enumerate(rows()):
        draw_row(axes, TOP - 0.42 - ROW * index, name, cut)
    return diagram.save(figure, folder, "strategies")
