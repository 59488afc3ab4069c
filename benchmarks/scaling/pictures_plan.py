"""Draws planned against measured bytes, with a point for every cell."""
from scaling import pictures, quantities, suite

TOLERANCE = 0.05
WORST = "#C0504D"


def worst_of(measured):
    return max(measured, key=lambda row: abs(suite.of_plan(row) - 1))


def draw_diagonal(axes, measured, ticks):
    ends = [ticks[0], ticks[-1]]
    axes.fill_between(ends, [end * (1 - TOLERANCE) for end in ends], [end * (1 + TOLERANCE) for end in ends],
                      color=pictures.GRID, linewidth=0)
    axes.plot(ends, ends, color=pictures.FAINT, linewidth=0.8)
    axes.plot([row["planned"]["device peak"] for row in measured], [suite.device_peak(row) for row in measured],
              "o", color=pictures.INK, markersize=4.5, alpha=0.45, markeredgewidth=0)
    pictures.bytes_axis(axes.yaxis, ticks[1:])  # the first would touch that of the other axis
    axes.set_ylim(ends)
    axes.set_ylabel("measured")


def draw_deviations(axes, measured, worst):
    percent = 100 * TOLERANCE
    axes.axhspan(-percent, percent, color=pictures.GRID, linewidth=0)
    axes.axhline(0, color=pictures.FAINT, linewidth=0.8)
    points = [(row["planned"]["device peak"], 100 * (suite.of_plan(row) - 1)) for row in measured]
    axes.plot(*zip(*points), "o", color=pictures.INK, markersize=4.5, alpha=0.45, markeredgewidth=0)
    x, y = points[measured.index(worst)]
    axes.set_ylim(-1.3 * max(percent, abs(y)), 1.3 * max(percent, abs(y)))
    axes.set_ylabel("measured beyond the plan, %")
    axes.annotate(f"allowed: {percent:g} %", (0.02, percent), xycoords=("axes fraction", "data"), xytext=(0, 4),
                  textcoords="offset points", color=pictures.FAINT)
    axes.plot(x, y, "o", color=WORST, markersize=6)
    is_right = x**2 > axes.get_xlim()[0] * axes.get_xlim()[1]
    told = f"worst, {quantities.spell_deviation(suite.of_plan(worst))}:\n{in_two_lines(worst['cell'])}"
    axes.annotate(told, (x, y), xytext=(-6 if is_right else 6, 14 if y >= 0 else -14), textcoords="offset points",
                  ha="right" if is_right else "left", va="bottom" if y >= 0 else "top", color=WORST)


def in_two_lines(name):
    """Returns a cell's name with its options on a second line."""
    words = name.split(" ")
    return "\n".join(filter(None, (" ".join(words[:3]), " ".join(words[3:]))))


def message(measured, worst):
    most = abs(suite.of_plan(worst) - 1)
    within = f"within {100 * most:.2g} %" if most > 0.0005 else "within 0.05 %"
    return f"All {len(measured)} cells: measured {within} of the plan"


def draw(shown, folder):
    """Draws the picture and returns its files. Raises pictures.NoData."""
    measured = [row for row in shown.measured if row["planned"]]
    if not measured:
        raise pictures.NoData("no cell was measured")
    sizes = [size for row in measured for size in (row["planned"]["device peak"], suite.device_peak(row))]
    ticks = pictures.doublings(min(sizes), max(sizes), most_ticks=6)
    worst = worst_of(measured)
    figure, (left, right) = pictures.new_figure(4.9, columns=2, width_ratios=[1, 1.25])
    exact = "; the engine's buffers alone: to the byte" if all(map(suite.is_exact, measured)) else ""
    pictures.say(figure, message(measured, worst),
                 f"The most of a rank's engine buffers and LibTorch's tensors together{exact}")
    for axes, shown_ticks in ((left, ticks[::2]), (right, ticks)):  # the left one is narrow
        pictures.bytes_axis(axes.xaxis, shown_ticks)
        axes.set_xlim(ticks[0], ticks[-1])
        axes.set_xlabel("planned")
    draw_diagonal(left, measured, ticks)
    draw_deviations(right, measured, worst)
    return pictures.save(figure, folder, "scaling-plan")
