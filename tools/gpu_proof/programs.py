"""Runs programs to their end or to a deadline. Each has its own session, which is killed as a whole."""
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time

POLL = 0.005  # seconds
SHOWN = 16 * 2**10  # bytes at the end of an output that are read


class Deadline:
    """A time limit, from now on, that several programs share."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.until = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.until - time.monotonic())


@dataclasses.dataclass
class Ended:
    """The end of a program: its exit code, or the signal that killed it. If the deadline ended it, it has neither."""
    code: int | None
    signal: int | None
    timed_out: bool
    seconds: float
    output: str  # the last SHOWN bytes

    @property
    def how(self):
        if self.timed_out:
            return f"did not end within {self.seconds:.0f} s"
        return f"ended with code {self.code}" if self.signal is None else f"was killed by signal {self.signal}"

    @property
    def why(self):
        """Returns `how` with the most informative line of the output."""
        line = telling_line(self.output)
        return f"{self.how}: {line}" if line else self.how


def telling_line(text):
    """Returns the first line that reports an error. If there is none, returns the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"error\[\d+\]|ERROR:|Error: ", line)]
    return (named[:1] or lines[-1:] or [""])[0][:400]


def reason_of(text):
    """Returns the most informative line without its place, which is this machine, and without its hint."""
    line = telling_line(text)
    match = re.search(r"error\[\d+\][^:]*: (.*)", line)
    return (match[1] if match else line).partition("; hint:")[0]


def end_session(leader):
    """Kills the leader's session. Requires: the leader was not waited for, so its number is not reused."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def has_ended(process):
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def output_of(path):
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - SHOWN))
        return file.read().decode(errors="replace")


def run(command, deadline, log, environment=None):
    """Runs a command with stdout and stderr in the file `log`. Raises OSError if it cannot be started."""
    log = pathlib.Path(log)
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, **(environment or {})})
    try:
        while not has_ended(process) and deadline.left() > 0:
            time.sleep(POLL)
        in_time = has_ended(process)
    finally:
        end_session(process.pid)
        process.wait()
    code = process.returncode
    return Ended(code=code if in_time and code >= 0 else None, signal=-code if in_time and code < 0 else None,
                 timed_out=not in_time, seconds=time.monotonic() - began, output=output_of(log))
