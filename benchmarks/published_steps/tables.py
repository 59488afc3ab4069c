"""Compares predictions with published steps of 16 and more GPUs, which no rates were fitted to."""
import dataclasses
import itertools
import math
import statistics

from published_steps import fits, machines, steps

MEDIAN_BAR, P90_BAR, PAIRS_BAR = 0.04, 0.09, 0.90
LEAST_DIFFERENCE = 0.05  # pairs of steps whose measured times differ by less are not compared
WORST_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class Found:
    """A step and its predicted seconds. `table` names the comparison; `unhidden` are the predicted seconds if no
    collective ran beside compute."""
    table: str
    step: steps.Step
    predicted: float
    fitted: bool = False  # the rates were fitted to this step
    unhidden: float = 0

    @property
    def error(self):
        return self.predicted / self.step.seconds - 1


@dataclasses.dataclass(frozen=True)
class Errors:
    """The absolute errors of several predictions."""
    count: int
    median: float
    p90: float  # the smallest error that nine of ten do not exceed
    worst: float

    @classmethod
    def of(cls, errors):
        sizes = sorted(map(abs, errors))
        return cls(len(sizes), statistics.median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1], sizes[-1])

    def __str__(self):
        return (f"{self.count:5d}  median {100 * self.median:4.1f} %  p90 {100 * self.p90:4.1f} %  "
                f"worst {100 * self.worst:4.1f} %")


def predict(planner, table, chosen, rates, fitted=False):
    return [Found(table, step, found.total, fitted, found.total + found.overlapped / (1 + rates["contention"]))
            for step, found in zip(chosen, planner.predict_all(chosen, rates))]


def mpt_steps(all_steps, name, held_out):
    return steps.of(all_steps, "llm-foundry", gpu=machines.GPUS[name],
                    gpus=lambda count: (count > 8) == held_out)


def predict_mpt(planner, all_steps, held_out):
    """Returns the predictions of llm-foundry's steps with the rates that fsdp-plan contains."""
    return [found for name in machines.FITTED for found in
            predict(planner, name, mpt_steps(all_steps, name, held_out), machines.load(name), fitted=not held_out)]


def predict_torchtitan(planner, all_steps):
    """Returns the predictions of torchtitan's steps of 128 GPUs, each with one factor from its step of 8 GPUs."""
    results = []
    for last in steps.of(all_steps, "torchtitan", gpus=lambda count: count > 8):
        first = steps.of(all_steps, "torchtitan", gpus=8, engine=last.engine, precision=last.precision)
        rates = fits.fit_scale(planner, machines.THIN["h100-500w"], machines.load("h100"), first)
        results += predict(planner, "torchtitan", [last], rates)
    return results


def residuals(planner, name, all_steps, rates):
    """Returns the field "residuals" of a rates file."""
    groups = []
    for held_out in (False, True):
        chosen = mpt_steps(all_steps, name, held_out)
        counts = sorted({step.gpus for step in chosen})
        where = f"{counts[0]} GPUs" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} GPUs"
        errors = Errors.of(planner.errors(chosen, rates))
        groups.append({"rows": f"published steps of {where}, {'not ' * held_out}fitted", "count": errors.count,
                       **{key: round(getattr(errors, key), 3) for key in ("median", "p90", "worst")}})
    return groups


def by_gpus(results):
    """Returns {number of GPUs: Errors}."""
    groups = {}
    for found in results:
        groups.setdefault(found.step.gpus, []).append(found.error)
    return {count: Errors.of(errors) for count, errors in sorted(groups.items())}


def pairs(results, same_model=False):
    """Returns how many pairs of steps on one machine are ranked right, and how many were compared, by the time of a
    token. `same_model`: only pairs of one model."""
    right = compared = 0
    for one, two in itertools.combinations(results, 2):
        if one.step.gpu != two.step.gpu or same_model and one.step.model != two.step.model:
            continue
        measured = math.log(one.step.seconds / one.step.tokens) - math.log(two.step.seconds / two.step.tokens)
        if abs(measured) <= math.log(1 + LEAST_DIFFERENCE):
            continue
        predicted = math.log(one.predicted / one.step.tokens) - math.log(two.predicted / two.step.tokens)
        compared += 1
        right += predicted * measured > 0
    return right, compared


def neighbours(found, results):
    """Returns the errors of the same model on other numbers of GPUs, as text."""
    others = [other for other in results if other.step.model == found.step.model and other.step.gpu == found.step.gpu
              and other.step.length == found.step.length and other.step != found.step]
    return ", ".join(f"{other.step.gpus}: {100 * other.error:+.1f} %" for other in others)


# Causes that the published rows themselves show.
CAUSES = {
    ("mpt-1b", "a100_40gb", 32): "a row that contradicts its neighbours: the same batch on 64 GPUs is 22 % faster",
    ("mpt-70b", "a100_40gb", 64): "probably collectives that the run did not hide: without overlap the error is -9 %; "
                                  "with twice the batch on 128 GPUs the row is 36 % faster a GPU",
}


def print_held_out(results, of_8):
    print("Steps of 16 and more GPUs (llm-foundry, FSDP1), with rates that were fitted to steps of 8 GPUs:")
    for name in machines.FITTED:
        print(f"  {name:8} {Errors.of([found.error for found in of_8 if found.table == name])}  (8 GPUs, fitted)")
        print(f"  {name:8} {Errors.of([found.error for found in results if found.table == name])}")
    for count, errors in by_gpus(results).items():
        print(f"  {count:4d} GPUs {errors}")
    print(f"  all      {Errors.of([found.error for found in results])}")
    print("Largest errors:")
    for found in sorted(results, key=lambda found: -abs(found.error))[:WORST_SHOWN]:
        step = found.step
        print(f"  {step.name}: {found.predicted:.3f} s for {step.seconds:.3f} s, {100 * found.error:+.1f} %; "
              f"with no collective hidden {found.unhidden:.3f} s; other numbers of GPUs: "
              f"{neighbours(found, [*of_8, *results])}")
        cause = CAUSES.get((step.model, step.gpu, step.gpus))
        if cause:
            print(f"    {cause}")


def print_torchtitan(results):
    print("\ntorchtitan, 128 GPUs, with one factor from the step of 8 GPUs of the same engine and type:")
    for found in results:
        print(f"  {found.step.engine} {found.step.precision}: {100 * found.error:+.1f} %")


def missed_bars(results):
    """Prints the bars and returns how many are missed."""
    errors = Errors.of([found.error for found in results])
    right, compared = pairs(results)
    right_of_model, compared_of_model = pairs(results, same_model=True)
    bars = [("median error", errors.median <= MEDIAN_BAR, f"{100 * errors.median:.1f} %", f"{100 * MEDIAN_BAR:.0f} %"),
            ("p90 of errors", errors.p90 <= P90_BAR, f"{100 * errors.p90:.1f} %", f"{100 * P90_BAR:.0f} %"),
            ("pairs ranked right", right >= PAIRS_BAR * compared,
             f"{100 * right / compared:.1f} % of {compared}", f"at least {100 * PAIRS_BAR:.0f} %")]
    print()
    for name, holds, value, bar in bars:
        print(f"{'holds ' if holds else 'MISSED'} {name}: {value} (bar {bar})")
    print(f"       pairs of one model, no bar: {right_of_model} of {compared_of_model}")
    return sum(not holds for _, holds, _, _ in bars)
