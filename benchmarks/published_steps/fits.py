"""Fits rates to published steps with fsdp-plan: four numbers to many steps of 8 GPUs, or one number to few steps."""
import dataclasses
import math

from published_steps import machines, steps

# Differences beyond this size count in proportion to their size, not to its square: some published steps ran short of
# memory.
ROBUST = 0.05
MOST_CONTENTION = 1.0
CLOSE = 0.01  # a fit ends when no number changes by more than this part


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The fitted numbers: a product with a smallest side s has the rate `limit` × s / (s + half)."""
    limit: float
    half: float
    attention: float
    contention: float

    def rates(self, machine, **rest):
        return machines.contents(machine, {"bfloat16": machines.product_curve(self.limit, self.half)},
                                 {"bfloat16": self.attention}, self.contention, **rest)

    def distance(self, other):
        """Returns the largest change of a rate at the sides of real layers, or of the contention."""
        def rates_of(numbers):
            return [numbers.limit * side / (side + numbers.half) for side in (1024, 4096)] + [numbers.attention]
        changes = [abs(math.log(one / two)) for one, two in zip(rates_of(self), rates_of(other))]
        return max(*changes, abs(self.contention - other.contention))


def numbers_of(rates):
    """Returns the Numbers of a rates file that fit_many made."""
    points = dict(map(tuple, rates["products"]["bfloat16"]))
    low, high = machines.SIDES[0], machines.SIDES[-1]
    half = (points[high] / points[low] - 1) / (1 / low - points[high] / points[low] / high)
    return Numbers(points[high] * (1 + half / high), half, rates["attention"]["bfloat16"], rates["contention"])


class Local:
    """The predictions near the numbers with which they were made: a rate scales its part of a step, and contention c
    costs c / (1 + c) of the time of collectives beside compute."""

    def __init__(self, numbers, chosen, predictions):
        import numpy

        self.numbers = numbers
        self.measured = numpy.array([step.seconds for step in chosen])
        self.sides = numpy.array([min(steps.MPT[step.model][0], step.sequences * step.length) for step in chosen])
        self.total, self.products, self.attention, self.overlapped = (
            numpy.array([getattr(found, part) for found in predictions])
            for part in ("total", "products", "attention", "overlapped"))

    def errors(self, other):
        old = self.numbers
        slower = old.limit / other.limit * (self.sides + other.half) / (self.sides + old.half)
        beside = other.contention / (1 + other.contention) - old.contention / (1 + old.contention)
        return (self.total + self.products * (slower - 1) + self.attention * (old.attention / other.attention - 1)
                + self.overlapped * beside) / self.measured - 1


def cost(errors):
    import numpy

    return float(numpy.sum(numpy.sqrt(1 + (errors / ROBUST) ** 2) - 1))


def moved(numbers, change):
    """Returns numbers after a change of their logarithms, and of the contention itself."""
    scale = [math.exp(min(max(part, -0.5), 0.5)) for part in change[:3]]
    contention = min(max(numbers.contention + float(change[3]), 0), MOST_CONTENTION)
    return Numbers(numbers.limit * scale[0], numbers.half * scale[1], numbers.attention * scale[2], contention)


def next_numbers(numbers, chosen, predictions):
    """Returns the numbers that fit the measured times best, by the local model of the predictions. Levenberg-Marquardt
    with the weights of a cost that grows like the size of large errors."""
    import numpy

    local = Local(numbers, chosen, predictions)
    best, errors, damping = numbers, local.errors(numbers), 1e-3
    for _ in range(100):
        inward = -1e-4 if best.contention >= MOST_CONTENTION else 1e-4
        slopes = numpy.stack([(local.errors(moved(best, [inward * (i == j) for i in range(4)])) - errors) / inward
                              for j in range(4)], axis=1)
        weighted = slopes / numpy.sqrt(1 + (errors[:, None] / ROBUST) ** 2)
        normal, slope = slopes.T @ weighted, weighted.T @ errors
        at_bound = best.contention in (0, MOST_CONTENTION)
        if at_bound and (slope[3] < 0) == (best.contention > 0):  # the bound holds it
            normal[3, :3] = normal[:3, 3] = slope[3] = 0
        change = -numpy.linalg.solve(normal + damping * numpy.diag(numpy.diag(normal) + 1e-12), slope)
        other = moved(best, change)
        other_errors = local.errors(other)
        if cost(other_errors) < cost(errors):
            finished = other.distance(best) < 1e-4
            best, errors, damping = other, other_errors, damping / 4
            if finished:
                break
        elif damping > 1e6:
            break
        else:
            damping *= 8
    return best


def fit_many(planner, name, chosen, say=lambda text: None, rounds=12):
    """Returns the Numbers of a machine, fitted to the chosen steps."""
    machine = machines.FITTED[name]
    numbers = numbers_of(machines.load(name))
    for index in range(rounds):
        found = planner.predict_all(chosen, numbers.rates(machine))
        better = next_numbers(numbers, chosen, found)
        change = better.distance(numbers)
        say(f"{name}: round {index + 1}: limit {better.limit:.3g}, half {better.half:.0f}, attention "
            f"{better.attention:.3g}, contention {better.contention:.2f}; changed by {100 * change:.1f} %")
        numbers = better
        if change < CLOSE:
            break
    return numbers


def solve(error_of, low, high):
    """Returns the number between low and high for which the function is 0, by bisection in the logarithm. If it has no
    zero there, returns the nearer end."""
    at_low, at_high = error_of(low), error_of(high)
    if (at_low > 0) == (at_high > 0):
        return low if abs(at_low) < abs(at_high) else high
    for index in range(40):
        # The secant, or every third time the middle, which always ends.
        part = at_low / (at_low - at_high) if index % 3 < 2 else 0.5
        middle = low * (high / low) ** part
        at_middle = error_of(middle)
        if abs(at_middle) < 2e-4:
            return middle
        if (at_middle > 0) == (at_low > 0):
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return middle


def mean_error(planner, chosen, rates):
    """Returns the mean logarithm of predicted / measured."""
    found = planner.predict_all(chosen, rates)
    return sum(math.log(each.total / step.seconds) for step, each in zip(chosen, found)) / len(chosen)


def scaled(rates, factor, dtype):
    """Returns products and attention of one type: those of `rates` in bfloat16, times a factor."""
    return ({dtype: [[side, machines.rounded(factor * rate)] for side, rate in rates["products"]["bfloat16"]]},
            {dtype: factor * rates["attention"]["bfloat16"]})


def fit_scale(planner, machine, base, chosen, **rest):
    """Returns rates of a machine: the rates of compute of `base` (the contents of a rates file) times the factor with
    which the chosen steps have a mean error of 0."""
    def rates_with(factor):
        faster = dataclasses.replace(machine, copy=machines.rounded(factor * base["device"]["copy_gbps"]))
        return machines.contents(faster, *scaled(base, factor, "bfloat16"), base["contention"], **rest)

    return rates_with(solve(lambda value: mean_error(planner, chosen, rates_with(value)), 0.1, 10))


def thin(rows):
    return {"basis": "thin", "rows": rows}


def fit_v100(planner, all_steps):
    """Returns the rates of a V100 in fp32. Its fp16 steps are not used: the planner prices the backward of a masked
    attention in fp16 as products in fp32."""
    machine, base = machines.THIN["v100"], machines.load("a100-40")
    one, eight = steps.of(all_steps, "nvidia-bert", precision="fp32")

    def rates_with(factor):
        return machines.contents(machine, *scaled(base, factor, "float32"), base["contention"])

    found = rates_with(solve(lambda value: mean_error(planner, [one], rates_with(value)), 0.005, 10))
    return fit_host(planner, machine, found, [eight], 2)


def fit_k80(planner, all_steps):
    machine = machines.THIN["k80"]
    one, two = steps.of(all_steps, "determined", gpus=lambda count: count <= 2)

    def rates_with(rate):
        return machines.contents(machine, {"float32": [[64, machines.rounded(rate)]]}, {"float32": rate}, 1.0)

    found = rates_with(solve(lambda value: mean_error(planner, [one], rates_with(value)), 1e11, 1e13))
    return fit_host(planner, machine, found, [two], 2)


def fit_host(planner, machine, rates, chosen, rows):
    """Returns the rates with a bandwidth in the host that comes from the chosen steps."""
    def rates_with(gbps):
        return machines.contents(dataclasses.replace(machine, host=gbps), rates["products"], rates["attention"],
                                 rates["contention"], **thin(rows))

    return rates_with(solve(lambda value: mean_error(planner, chosen, rates_with(value)), 0.2, 400))


def fit_thin(planner, all_steps):
    """Returns {name: rates} of the machines with few published steps."""
    h100 = machines.load("h100")
    chosen = {"h100-500w": steps.of(all_steps, "torchtitan", engine="FSDP2 eager", gpus=8),
              "h200": steps.of(all_steps, "kempnerforge"), "gb200": steps.of(all_steps, "megatron-bridge")}
    found = {name: fit_scale(planner, machines.THIN[name], h100, rows, **thin(len(rows)))
             for name, rows in chosen.items()}
    return {**found, "v100": fit_v100(planner, all_steps), "k80": fit_k80(planner, all_steps)}


def change_of(planner, name, chosen):
    """Returns by which part a further round of the fit would change a shipped file. A file that the fit made changes
    by less than CLOSE, and by rounding."""
    rates = machines.load(name)
    numbers = numbers_of(rates)
    return next_numbers(numbers, chosen, planner.predict_all(chosen, rates)).distance(numbers)
