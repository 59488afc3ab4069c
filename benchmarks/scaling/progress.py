"""Shows the progress of a run of many cells: a line that is redrawn on a terminal, or lines in a log."""
import sys
import time


def spell_time(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


class Progress:
    """The progress of jobs. Each job has a weight, its relative duration."""

    def __init__(self, weights, stream=sys.stderr):
        self.left, self.count, self.finished = sum(weights), len(weights), 0
        self.done, self.began, self.stream = 0.0, time.monotonic(), stream
        self.is_terminal = stream.isatty()

    def time_left(self):
        if self.done == 0:
            return "time left unknown"
        return f"{spell_time((time.monotonic() - self.began) / self.done * self.left)} left"

    def begin(self, name):
        if self.is_terminal:
            text = f"[{self.finished + 1}/{self.count}] {name} … {self.time_left()}"
            print(f"\r\033[K{text[:79]}", end="", file=self.stream, flush=True)

    def end(self, weight, text):
        """Records the end of a job. `text` is its result, for the user."""
        self.left, self.done, self.finished = self.left - weight, self.done + weight, self.finished + 1
        if self.is_terminal:
            print("\r\033[K", end="", file=self.stream, flush=True)
        left = f" ({self.time_left()})" if self.finished < self.count else ""
        print(f"[{self.finished}/{self.count}] {text}{left}", flush=True)

    def close(self):
        if self.is_terminal:
            print("\r\033[K", end="", file=self.stream, flush=True)
