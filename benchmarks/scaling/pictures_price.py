"""Draws the price of saved memory: step time and bytes sent relative to replicate's on the same number of ranks. Cells
with mapped shards are also shown with gathered ones, as on GPUs; these are planned and have no time."""
import collections
import dataclasses

from scaling import cells, pictures, quantities, runs, suite


@dataclasses.dataclass(frozen=True)
class Priced:
    """One cell, as multiples of the values of replicate with the same model and ranks."""
    row: dict
    memory: float
    host: float
    sent: float
    time: float = None  # None for gathered shards, which are not measured

    @property
    def is_gathered(self):
        return self.time is None

    @property
    def name(self):
        name = " + ".join([pictures.NAMES[self.row["strategy"]], *suite.options_of(self.row)])
        return f"{name}, gathered" if self.is_gathered else name


def priced(row, base):
    measured, unit = row["measured"], suite.device_peak(base)
    return Priced(row, suite.device_peak(row) / unit, measured["host"] / unit,
                  measured["sent"] / base["measured"]["sent"], suite.step_ms(row) / suite.step_ms(base))


class CannotPlan(Exception):
    """The error if gathered shards cannot be planned. The text gives the reason."""


def plan(row, maps, programs):
    """Returns the bytes of a rank by scaling_probe, with mapped or gathered shards. Raises CannotPlan."""
    cell = cells.Cell(row["model"], row["strategy"], row["ranks"], recompute=bool(row["recompute"]),
                      offload=row["offload"], bfloat16=row["param_dtype"] == "bfloat16", prefetch=row["prefetch"])
    words = [*cell.words, "--planned-ranks", cell.grouped_ranks, "--device", "cpu", "--map-shards", str(maps).lower()]
    try:
        return runs.run_probe(programs, words)[0]["planned"]
    except runs.RunFailed as error:
        raise CannotPlan(str(error)) from None


def gathered(row, base, programs):
    """Returns a list of the cell without mapped shards; empty if that is the same. Raises CannotPlan."""
    mapped = plan(row, True, programs)
    if mapped["device peak"] != row["planned"]["device peak"]:
        raise CannotPlan(f"{row['cell']} has another plan now than when it was measured")
    apart = plan(row, False, programs)
    if apart["device peak"] == mapped["device peak"]:
        return []
    unit = suite.device_peak(base)
    return [Priced(row, apart["device peak"] / unit, apart["host"] / unit, apart["sent"] / base["measured"]["sent"])]


def all_gathered(chosen, base, programs):
    """Returns the gathered variants of cells with mapped shards. Prints and leaves out those that cannot be planned."""
    try:
        return [each for row in chosen if row["strategy"] == suite.FULL_SHARD for each in gathered(row, base, programs)]
    except CannotPlan as error:
        print(f"left out: gathered shards in the price: {error}")
        return []


def choose(shown):
    """Returns strategies and single options for the number of ranks with most measurements, replicate included."""
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
        raise pictures.NoData("replicate and another strategy were not measured with the same number of ranks")
    ranks = max(usable, key=lambda ranks: (len(counted[ranks]), ranks))
    return counted[ranks], bases[ranks]


def beside_host(each):
    """Returns the memory of the device; with offload also the host's."""
    host = f" + {quantities.spell_factor(each.host)} host" if each.host else ""
    return quantities.spell_factor(each.memory) + host


LONGEST = 2.5  # longer bars are cut, so that the others stay distinguishable


def bars(axes, shown, value_of, word, spelled=None):
    """Draws a bar for each cell from 0 to its value, with the value as its label. The line at 1 is replicate."""
    values = [value_of(each) for each in shown]
    lengths = [min(value or 0, LONGEST) for value in values]
    colors = [pictures.COLORS[each.row["strategy"]] for each in shown]
    drawn = axes.barh(range(len(shown)), lengths, height=0.62, color=colors)
    axes.axvline(1, color=pictures.FAINT, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0)
    for row, (each, value, length, bar) in enumerate(zip(shown, values, lengths, drawn)):
        if each.is_gathered and value is not None:
            bar.set(facecolor="white", edgecolor=colors[row], hatch="////")
        text = spelled(each) if spelled else "not measured" if value is None else quantities.spell_factor(value)
        axes.annotate(text, (length, row), xytext=(5, 0), textcoords="offset points", va="center",
                      color=pictures.FAINT if value is None else pictures.INK,
                      bbox={"boxstyle": "square,pad=0.1", "color": "white"})
        if value and length < value:
            axes.plot([0.88 * length, 0.92 * length], [row + 0.38, row - 0.38], color="white", linewidth=3)
    axes.set_xlim(0, max(1, *lengths) * 1.28)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_title(word, loc="left", fontsize=12)


def message(shown):
    plain = [each for each in shown if each.row["strategy"] == suite.FULL_SHARD and suite.is_plain(each.row)]
    mapped = next((each for each in plain if not each.is_gathered), None)
    if mapped is None:
        return "What saved memory costs"
    shares = [quantities.spell_percent(mapped.memory)]
    shares += [f"gathered {quantities.spell_percent(each.memory)}" for each in plain if each.is_gathered]
    return (f"Full shard takes {', '.join(shares)} of replicate's memory, "
            f"{quantities.spell_percent(mapped.time)} of its step time")


def draw(shown, programs, folder):
    """Draws the picture and returns its files. `programs`: the folder of scaling_probe. Raises pictures.NoData."""
    chosen, base = choose(shown)
    cells_shown = [priced(row, base) for row in chosen] + all_gathered(chosen, base, programs)
    cells_shown.sort(key=lambda each: (-each.memory, each.time or 0))
    below = (f"{pictures.model_name(base['model'])} on {base['ranks']} processes of one host; each bar as a multiple "
             "of replicate's (what DDP does)")
    if any(each.is_gathered for each in cells_shown):
        below += "\nHatched: fp32 shards gathered, as between GPUs or hosts, by the plan. Else this host maps them"
    figure, panels = pictures.new_figure(1.7 + 0.2 * below.count("\n") + 0.36 * len(cells_shown), columns=3,
                                         sharey=True)
    pictures.say(figure, message(cells_shown), below)
    bars(panels[0], cells_shown, lambda each: each.memory, "memory of a rank", beside_host)
    bars(panels[1], cells_shown, lambda each: each.time, "step time")
    bars(panels[2], cells_shown, lambda each: each.sent, "bytes sent")
    panels[0].set_yticks(range(len(cells_shown)), [each.name for each in cells_shown])
    panels[0].set_ylim(len(cells_shown) - 0.5, -0.5)
    return pictures.save(figure, folder, "scaling-price")
