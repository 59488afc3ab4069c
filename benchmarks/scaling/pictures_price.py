"""What saved memory costs: step time and bytes sent beside replicate's, on as many ranks."""
import collections

from scaling import pictures, quantities, suite


class Priced:
    """One cell beside replicate of the same model and ranks."""

    def __init__(self, row, base):
        self.row = row
        self.memory = suite.device_peak(row) / suite.device_peak(base)
        self.host = row["measured"]["host"] / suite.device_peak(base)
        self.time = suite.step_ms(row) / suite.step_ms(base)
        self.sent = row["measured"]["sent"] / base["measured"]["sent"]

    @property
    def name(self):
        return " + ".join([pictures.NAMES[self.row["strategy"]], *suite.options_of(self.row)])


def choose(shown):
    """Strategies and single options on the ranks on which most of them were measured, replicate among them."""
    model = shown.shown_model()
    counted = collections.defaultdict(list)
    for row in shown.measured:
        if (row["model"] == model and not row["simulated"] and row["ranks"] > 1 and
                len(suite.options_of(row)) <= (row["strategy"] == suite.FULL_SHARD)):
            counted[row["ranks"]].append(row)
    bases = {ranks: shown.measured_plain(model, suite.REPLICATE, ranks) for ranks in counted}
    usable = [ranks for ranks, base in bases.items()
              if base and base["measured"]["sent"] and len(counted[ranks]) > 1]
    if not usable:
        raise pictures.NoData("replicate and something beside it were not measured on the same ranks")
    ranks = max(usable, key=lambda ranks: (len(counted[ranks]), ranks))
    return [Priced(row, bases[ranks]) for row in counted[ranks]], bases[ranks]


def beside_host(each):
    """Memory of the device; with offload the host's, too."""
    host = f" + {quantities.spell_factor(each.host)} host" if each.host else ""
    return quantities.spell_factor(each.memory) + host


LONGEST = 2.5  # a bar beyond it is cut, so that the others can be told apart


def bars(axes, priced, value_of, word, spelled=None):
    """Of each cell one, from nothing to its value, which stands behind it; replicate's is the line at 1."""
    values = [value_of(each) for each in priced]
    lengths = [min(value, LONGEST) for value in values]
    axes.barh(range(len(priced)), lengths, height=0.62,
              color=[pictures.COLORS[each.row["strategy"]] for each in priced])
    axes.axvline(1, color=pictures.FAINT, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0)
    for row, (each, value, length) in enumerate(zip(priced, values, lengths)):
        text = spelled(each) if spelled else quantities.spell_factor(value)
        axes.annotate(text, (length, row), xytext=(5, 0), textcoords="offset points",
                      va="center", bbox={"boxstyle": "square,pad=0.1", "color": "white"})
        if length < value:
            axes.plot([0.88 * length, 0.92 * length], [row + 0.38, row - 0.38], color="white", linewidth=3)
    axes.set_xlim(0, max(1, *lengths) * 1.28)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_title(word, loc="left", fontsize=12)


def message(priced):
    full = next((each for each in priced if each.row["strategy"] == suite.FULL_SHARD and
                 suite.is_plain(each.row)), None)
    if full is None:
        return "What saved memory costs"
    return (f"Full shard takes {quantities.spell_percent(full.memory)} of replicate's memory, "
            f"{quantities.spell_percent(full.time)} of its step time")


def draw(shown, folder):
    """Files of the picture. Raises pictures.NoData."""
    priced, base = choose(shown)
    priced.sort(key=lambda each: (-each.memory, each.time))
    figure, panels = pictures.new_figure(1.7 + 0.36 * len(priced), columns=3, sharey=True)
    pictures.say(figure, message(priced),
                 f"{pictures.model_name(base['model'])} on {base['ranks']} processes of one host; each bar as a "
                 "multiple of replicate's (what DDP does)")
    bars(panels[0], priced, lambda each: each.memory, "memory of a rank", beside_host)
    bars(panels[1], priced, lambda each: each.time, "step time")
    bars(panels[2], priced, lambda each: each.sent, "bytes sent")
    panels[0].set_yticks(range(len(priced)), [each.name for each in priced])
    panels[0].set_ylim(len(priced) - 0.5, -0.5)
    return pictures.save(figure, folder, "scaling-price")
