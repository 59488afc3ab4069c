"""Programs that are run to their end, or ended: each in a session of its own, with all that it has started."""
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time

POLL = 0.005  # seconds
SHOWN = 16 * 2**10  # bytes of an output's end that are looked at


class Deadline:
    """A time from now on that several programs share."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.until = time.monotonic() + seconds

    def left(self):
        return max(0.0, self.until - time.monotonic())


@dataclasses.dataclass
class Ended:
    """How a program ended: its code, or the signal that killed it; neither where it was ended here."""
    code: int | None
    signal: int | None
    timed_out: bool
    seconds: float
    output: str  # its end

    @property
    def how(self):
        if self.timed_out:
            return f"did not end within {self.seconds:.0f} s"
        return f"ended with code {self.code}" if self.signal is None else f"was killed by signal {self.signal}"

    @property
    def why(self):
        """How, and the line that says most."""
        line = telling_line(self.output)
        return f"{self.how}: {line}" if line else self.how


def telling_line(text):
    """The first line of an error of ours; else the last that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"error\[\d+\]|ERROR:|Error: ", line)]
    return (named[:1] or lines[-1:] or [""])[0][:400]


def reason_of(text):
    """The telling line without the place, which is this machine, and without the hint."""
    line = telling_line(text)
    match = re.search(r"error\[\d+\][^:]*: (.*)", line)
    return (match[1] if match else line).partition("; hint:")[0]


def end_session(leader):
    """Of a leader that nobody has waited for, so that its number is no one else's yet."""
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
    """Its output, and its errors', goes to the file `log`. Raises OSError where it cannot be started."""
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
