"""Draws one step of rank 0 over time, from a trace: its engine's bytes by category, and the working unit."""
import collections
import json
import os

from scaling import pictures, quantities

FORWARD, BACKWARD, UPDATE = "#2F6FAF", "#C77D2B", "#6B6B6B"
UPDATE_SPANS = ("gradient norm", "optimizer")
MOST_UNITS = 16  # number of units with readable names


class Step:
    """Rank 0's data in a trace: times in milliseconds since the first event, bytes by category."""

    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                events = [event for event in json.load(file)["traceEvents"] if event["pid"] == 0]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise pictures.NoData(f"{path} is not a trace: {error}") from None
        timed = [event for event in events if "ts" in event]
        counts = [event for event in timed if event["ph"] == "C"]
        if not counts:
            raise pictures.NoData(f"{path} has no bytes by category")
        self.start = min(event["ts"] for event in timed)
        self.end = self.time(max(event["ts"] + event.get("dur", 0) for event in timed))
        self.times = [self.time(event["ts"]) for event in counts] + [self.end]
        self.courses = {name: [event["args"].get(name, 0) for event in counts] for name in pictures.CATEGORIES}
        self.courses = {name: [*course, course[-1]] for name, course in self.courses.items() if max(course) > 0}
        self.units = collections.defaultdict(list)  # name -> (begin, length, colour)
        for event in timed:
            color = {"forward": FORWARD, "backward": BACKWARD}.get(event.get("cat"))
            if event["ph"] == "X" and color:
                name = event["name"].partition(" ")[2]
                self.units[name].append((self.time(event["ts"]), event["dur"] / 1e3, color))
        updates = [event for event in timed if event.get("cat") in UPDATE_SPANS]
        self.update = (min(self.time(event["ts"]) for event in updates),
                       max(self.time(event["ts"] + event["dur"]) for event in updates)) if updates else None

    def time(self, stamp):
        return (stamp - self.start) / 1e3

    def totals(self):
        return [sum(course[i] for course in self.courses.values()) for i in range(len(self.times))]


def short_names(names):
    """Returns names without the prefix that all except the root share: encoder.layer.0 for bert.encoder.layer.0."""
    common = os.path.commonprefix([name for name in names if name]) if len(names) > 2 else ""
    common = common[:common.rfind(".") + 1]
    return {name: name.removeprefix(common) or "root" for name in names}


def draw_bytes(axes, step):
    scale = 2**30 if max(step.totals()) >= 2**31 else 2**20
    axes.stackplot(step.times, [[size / scale for size in course] for course in step.courses.values()],
                   colors=[pictures.CATEGORIES[name] for name in step.courses], step="post", linewidth=0)
    axes.set_ylabel("GiB" if scale == 2**30 else "MiB")
    pictures.grid(axes)
    axes.set_xlim(0, step.end)
    axes.set_ylim(0, max(step.totals()) / scale * 1.12)
    label_categories(axes, step, scale)


def label_categories(axes, step, scale):
    """Labels categories that exist when backward ends at the right, and others over their longest stretch."""
    totals, under, beside = step.totals(), [0.0] * len(step.times), []
    grown = step.courses.get("main gradients", totals)
    at = max(index for index, size in enumerate(grown) if size == max(grown))
    passing = {name: course for name, course in step.courses.items() if course[at] <= 0.02 * totals[at]}
    for name, course in step.courses.items():
        color = pictures.CATEGORIES[name]
        if name not in passing:
            beside.append((step.end, (under[at] + course[at] / 2) / scale, name, color))
        else:
            time = where_alone(step.times, course, [other for other in passing.values() if other is not course])
            time = max(time, step.end / 8)  # within the axes
            near = [total for when, total in zip(step.times, totals) if abs(when - time) < step.end / 8]
            axes.annotate(name, (time, max(near, default=max(totals)) / scale), xytext=(0, 5), ha="center",
                          textcoords="offset points", color=pictures.as_ink(color), annotation_clip=False)
        under = [low + size for low, size in zip(under, course)]
    pictures.label_ends(axes, beside, gap=0.09)


def where_alone(times, course, others):
    """Returns the middle of the longest stretch of a category, if possible where the others are absent."""
    holds = [size > 0.3 * max(course) for size in course]
    alone = [now and not any(other[index] for other in others) for index, now in enumerate(holds)]
    return middle_of_longest(times, alone if any(alone) else holds)


def middle_of_longest(times, holds):
    """Returns the middle of the longest stretch in which `holds` is true. A stretch lasts until the next moment at
    which it is false."""
    stretches, begin = [], None
    for time, now in zip(times, holds):
        if now and begin is None:
            begin = time
        elif not now and begin is not None:
            stretches.append((time - begin, (time + begin) / 2))
            begin = None
    if begin is not None:
        stretches.append((times[-1] - begin, (times[-1] + begin) / 2))
    return max(stretches)[1]


def shown_units(units):
    """Returns the units in order of their first use; if there are many, the first and the last ones."""
    names = sorted(units, key=lambda name: (min(units[name])[0], name != ""))
    if len(names) <= MOST_UNITS:
        return names, 0
    half = MOST_UNITS // 2
    return names[:half] + names[-half:], len(names) - MOST_UNITS


def draw_units(axes, step):
    names, hidden = shown_units(step.units)
    spelled = short_names(list(step.units))
    gap_at = MOST_UNITS // 2 if hidden else len(names)
    ticks, words = [], []
    for row, name in enumerate(names):
        row += row >= gap_at
        ticks.append(row)
        words.append(spelled[name])
        for begin, length, color in step.units[name]:
            axes.barh(row, length, left=begin, height=0.72, color=color)
    if hidden:
        ticks.append(gap_at)
        words.append(f"… {hidden} more")
    axes.set_yticks(ticks, words)
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds")
    draw_phases(axes, step, names)


def draw_phases(axes, step, names):
    """Draws the phases, with the name of each over its first bar."""
    root = names[0]
    top = -0.75
    for color, word in ((FORWARD, "forward"), (BACKWARD, "backward")):
        bars = [bar for bar in step.units[root] if bar[2] == color]
        if bars:
            axes.text(bars[0][0], top, word, color=color, fontweight="bold", va="bottom")
    if step.update:
        begin, end = step.update
        axes.axvspan(begin, end, color=UPDATE, alpha=0.18, linewidth=0)
        axes.annotate("optimizer", (end, len(names) / 2), xytext=(10, 0), textcoords="offset points",
                      color=UPDATE, fontweight="bold", va="center", annotation_clip=False)


def draw(trace, of, folder):
    """Draws the picture and returns its files. `of`: the trained model. Raises pictures.NoData."""
    if trace is None:
        raise pictures.NoData("no trace is given")
    step = Step(trace)
    rows_shown = min(len(step.units), MOST_UNITS + 1)
    totals = step.totals()
    figure, (upper, lower) = pictures.new_figure(3.6 + 0.28 * rows_shown, rows=2, sharex=True,
                                                 height_ratios=[2.6, 0.28 * rows_shown + 0.4])
    pictures.say(figure, f"A step adds {quantities.spell_bytes(max(totals) - totals[0])} of engine buffers to the "
                         f"{quantities.spell_bytes(totals[0])} at rest",
                 f"Engine buffers and units of one rank; {of}")
    draw_bytes(upper, step)
    draw_units(lower, step)
    return pictures.save(figure, folder, "scaling-step")
