"""Runs the parts of a proof. Each part has a name and a time limit. It also runs if other parts fail."""
import dataclasses
import time
import typing

import programs


class Skipped(Exception):
    """The error of a part that cannot run on this machine. The message is the reason."""


class Failed(Exception):
    """The error of a part that ran and failed. The message is the reason."""


@dataclasses.dataclass
class Part:
    name: str
    limit: float  # seconds
    # Called with a programs.Deadline; its result is printed after "passed". Raises Skipped or Failed.
    run: typing.Callable


@dataclasses.dataclass
class Result:
    name: str
    state: str  # passed, failed or skipped
    detail: str
    seconds: float

    @property
    def line(self):
        seconds = f"{self.seconds:6.1f} s" if self.state != "skipped" else " " * 8
        return f"{self.state:<8} {self.name:<36} {seconds}  {self.detail}".rstrip()


def run_part(part, whole):
    """Runs a part and returns its Result. `whole` is the Deadline of all parts together."""
    began = time.monotonic()

    def result(state, detail):
        return Result(part.name, state, " ".join(str(detail or "").split()), time.monotonic() - began)

    if whole.left() <= 0:
        return result("failed", f"not tried: the {whole.seconds:.0f} s of all parts are over")
    try:
        return result("passed", part.run(programs.Deadline(min(part.limit, whole.left()))))
    except Skipped as why:
        return result("skipped", why)
    except (Failed, OSError) as why:
        return result("failed", why)


def run_parts(parts, seconds, say):
    """Runs the parts in order; calls say(line) after each, and with the totals at the end."""
    whole = programs.Deadline(seconds)
    results = []
    for part in parts:
        results.append(run_part(part, whole))
        say(results[-1].line)
    counts = {state: sum(each.state == state for each in results) for state in ("passed", "failed", "skipped")}
    say(", ".join(f"{count} {state}" for state, count in counts.items()))
    return results


def exit_code(results):
    return 1 if any(each.state == "failed" for each in results) else 0


def skip_all(parts, why):
    """Returns the parts, all skipped for one reason."""
    def skip(_):
        raise Skipped(why)

    return [dataclasses.replace(part, run=skip) for part in parts]
