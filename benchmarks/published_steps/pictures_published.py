"""Draws predictions beside published steps: all of them, and what is retained on more GPUs."""
from published_steps import machines, steps
from published_steps.tables import Errors
from scaling import pictures

# Colours by source and machine, distinguishable for the colour-blind.
GROUPS = [("llm-foundry", "h100_80gb", "llm-foundry, H100", "#0072B2"),
          ("llm-foundry", "a100_40gb", "llm-foundry, A100 40 GB", "#E69F00"),
          ("llm-foundry", "a100_80gb", "llm-foundry, A100 80 GB", "#009E73"),
          ("torchtitan", None, "torchtitan, H100 500 W", "#CC79A7"),
          ("yafsdp", None, "YaFSDP's table, A100 80 GB", "#56B4E9"),
          ("maxtext", None, "maxtext, H100 A3", "#D55E00"),
          ("determined", None, "Determined AI, K80", pictures.INK)]
BAND = 0.10
LABELLED = 0.15  # predictions with a larger error have a label
NOT_DRAWN = ("nothing known", "network of h100")  # tables of rates that were not made for the machine
RETAINED = ("mpt-1b", "mpt-3b", "mpt-7b", "mpt-13b", "mpt-70b")
RANKS = (128, 256, 512, 1024, 2048, 4096)
COLORS = ("#D55E00", "#E69F00", "#0072B2", "#009E73", "#7A5195")
MARKERS = "osD^v"


def draw_steps(results, folder):
    """Draws predicted against measured times; fitted steps are hollow."""
    from matplotlib import ticker

    figure, axes = pictures.new_figure(6.6)
    held_out = Errors.of([found.error for found in results if not found.fitted
                          and found.step.source == "llm-foundry"])
    pictures.say(figure, f"{held_out.count} steps on more than 8 GPUs: predicted with a median error of "
                 f"{100 * held_out.median:.1f} %",
                 "Published time of a training step, and fsdp-plan's prediction. Hollow: steps to which rates were "
                 "fitted.\nllm-foundry's filled points have rates from 8 GPUs alone; the other machines, a factor or a "
                 "network from one or two steps.")
    shown = {source for source, *_ in GROUPS}
    drawn = [found for found in results if found.step.source in shown and not found.table.endswith(NOT_DRAWN)]
    least = 0.8 * min(found.step.seconds for found in drawn)
    most = 1.25 * max(found.step.seconds for found in drawn)
    axes.plot([least, most], [least, most], color=pictures.FAINT, linewidth=1, zorder=1)
    for band in (-BAND, BAND):
        axes.plot([least, most], [least * (1 + band), most * (1 + band)], color=pictures.FAINT, linewidth=0.8,
                  linestyle=(0, (3, 3)), zorder=1)
    for source, gpu, label, color in GROUPS:
        for fitted in (True, False):
            points = [found for found in drawn if found.step.source == source and found.fitted == fitted
                      and gpu in (None, found.step.gpu)]
            axes.plot([found.step.seconds for found in points], [found.predicted for found in points], "o",
                      markersize=4.5 if fitted else 6.5, color=color, markerfacecolor="none" if fitted else color,
                      markeredgecolor=color if fitted else "white", markeredgewidth=0.8, zorder=2 if fitted else 3,
                      label=None if fitted else label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(10, (1, 2, 5)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g} s"))
        axis.set_minor_locator(ticker.NullLocator())
    pictures.grid(axes, "both")
    axes.set_xlabel("published")
    axes.set_ylabel("predicted")
    for found in drawn:
        if not found.fitted and abs(found.error) > LABELLED:
            name = f"{found.step.model.removeprefix('mpt-').upper()} on {found.step.gpus} GPUs"
            axes.annotate(name, (found.step.seconds, found.predicted), xytext=(8, -4), textcoords="offset points",
                          fontsize=9, va="center")
    place = 0.55 * most
    axes.annotate("±10 %", (place, place * (1 + BAND)), xytext=(-4, 10), textcoords="offset points", ha="right",
                  color=pictures.FAINT)
    axes.legend(loc="lower right", frameon=False, handletextpad=0.3)
    return pictures.save(figure, folder, "published-steps")


def step_of(all_steps, model, gpus):
    found = steps.of(all_steps, "llm-foundry", gpu="h100_80gb", model=model, gpus=gpus)
    return found[0] if found else None


def draw_retention(planner, folder):
    """Draws the tokens/s a GPU as a share of those on the fewest published GPUs of at least 128."""
    import dataclasses

    all_steps, rates = steps.load(), machines.load("h100")
    figure, axes = pictures.new_figure(5.2)
    labels = []
    for model, color, marker in zip(RETAINED, COLORS, MARKERS):
        measured = {gpus: step for gpus in RANKS if (step := step_of(all_steps, model, gpus))}
        first = measured[min(measured)]
        planned = planner.predict_all([dataclasses.replace(first, gpus=gpus) for gpus in RANKS], rates)
        base = planned[RANKS.index(first.gpus)].total
        shares = [base / found.total for found in planned]
        axes.plot(RANKS, shares, color=color, linewidth=1.6, zorder=2)
        for gpus, step in measured.items():
            share, predicted = first.seconds / step.seconds, shares[RANKS.index(gpus)]
            axes.plot(gpus, share, marker, color=color, markersize=8, markerfacecolor="none", markeredgewidth=1.6,
                      zorder=4)
            if step is not first:
                axes.plot([gpus, gpus], [share, predicted], color=color, linewidth=0.9, zorder=3)
        worst = max((abs(shares[RANKS.index(gpus)] * step.seconds / first.seconds - 1)
                     for gpus, step in measured.items() if step is not first), default=None)
        name = model.removeprefix("mpt-").upper()
        labels.append((RANKS[-1], shares[-1], name if worst is None else f"{name}, error {100 * worst:.1f} %", color))
    pictures.say(figure, "Small models lose throughput on many GPUs; published steps confirm it up to 512",
                 "Tokens/s a GPU, as a share of those on the fewest GPUs shown. MPT on H100, published batches.\n"
                 "Lines: fsdp-plan. Points: llm-foundry. Labels: the largest error of a line.")
    pictures.double_axis(axes.xaxis, RANKS, "{:,.0f}".format)
    axes.set_xlim(RANKS[0] * 0.93, RANKS[-1] * 1.05)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylim(top=1.02)
    pictures.grid(axes)
    axes.set_xlabel("GPUs, all in one group of full shard")
    pictures.label_ends(axes, labels)
    return pictures.save(figure, folder, "published-retention")


def draw(results, planner, folder):
    """Returns the paths of the pictures."""
    return [*draw_steps(results, folder), *draw_retention(planner, folder)]
