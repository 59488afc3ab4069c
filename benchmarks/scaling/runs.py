"""Runs a cell: starts its processes, watches them from outside, and reads the output of rank 0."""
import contextlib
import json
import os
import subprocess
import tempfile
import time

# Pause between two rounds of readings, as a multiple of a round's time. Reading the resident memory of a process walks
# its page tables and blocks its page faults during that time.
PAUSE = 10
SHORTEST_PAUSE = 0.02
# A run is ended while the machine still has this much memory; otherwise the kernel would choose a process to kill.
LEAST_FREE = 700 * 2**20
TIME_LIMIT = 1800  # seconds


class RunFailed(Exception):
    """The error of a run that failed. It has the exit code and the reason in one line."""

    def __init__(self, code, why):
        super().__init__(why)
        self.code, self.why = code, why


CANNOT_HOLD = "this machine cannot hold it: "


class NoMemory(RunFailed):
    """The error of a run that was ended because memory ran out. The reason begins with CANNOT_HOLD."""


def free_bytes():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:"))


def resident_bytes(pid):
    """Returns the proportional set size. A page that n processes share counts 1/n in each. 0 if the process ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
            return next((int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            return [int(word) for word in children.read().split()]
    except OSError:
        return []


class Watch:
    """The peak of all ranks together, with their libraries. Each rank reports its own growth. The kernel stores that
    peak, so it is never read too late."""

    def __init__(self):
        self.together = 0

    def look(self, pids, is_done):
        """Reads all processes once. A round does not count if rank 0 printed its last line during it. After a rank has
        ended, the others have a larger share of the shared memory."""
        together = sum(resident_bytes(pid) for pid in pids)
        if not is_done():
            self.together = max(self.together, together)


def why_of(text):
    """Returns the line that gives the reason in an error output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "error[" in line or "Error: " in line]
    return (named or lines or ["said nothing"])[-1][:400]


def stop(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def measure(commands, pids_of, environments=None):
    """Runs all commands in parallel until each has ended. Returns the first JSON line of their outputs, and a Watch of
    the processes that pids_of(the commands' pids) returns. Raises RunFailed."""
    environments = environments or [{} for _ in commands]
    with contextlib.ExitStack() as stack:
        output, errors = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
        processes = []
        stack.callback(stop, processes)
        for command, environment in zip(commands, environments):
            try:
                processes.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output,
                                                  stderr=errors, env={**os.environ, **environment}))
            except OSError as error:
                raise RunFailed(64, f"{command[0]} cannot be started: {error.strerror}") from None
        watch, began = Watch(), time.monotonic()

        def is_done():
            return os.fstat(output.fileno()).st_size > 0

        while any(process.poll() is None for process in processes):
            round_began = time.monotonic()
            if not is_done():
                watch.look(pids_of([process.pid for process in processes]), is_done)
            if free_bytes() < LEAST_FREE:
                raise NoMemory(None, f"{CANNOT_HOLD}{watch.together / 2**30:.1f} GiB in, nothing was left")
            if time.monotonic() - began > TIME_LIMIT:
                raise RunFailed(None, f"did not end within {TIME_LIMIT} s")
            if any(process.poll() for process in processes):
                break  # the other commands would wait for the failed one
            time.sleep(max(SHORTEST_PAUSE, PAUSE * (time.monotonic() - round_began)))
        failed = [process for process in processes if process.poll()]
        if failed:
            time.sleep(1)  # for the error lines of the others
            stop(processes)
            errors.seek(0)
            raise RunFailed(failed[0].returncode, why_of(errors.read()))
        output.seek(0)
        line = next((line for line in output if line.startswith("{")), None)
        if line is None:
            raise RunFailed(0, "ended without a result")
        return json.loads(line), watch


def run_probe(programs, words, ranks=1):
    """Runs scaling_probe by fsdp-run, whose children are the ranks; without it for one rank."""
    probe = [programs / "scaling_probe", *words]
    if ranks == 1:
        return measure([probe], lambda pids: pids)
    return measure([[programs / "fsdp-run", "-n", ranks, *probe]],
                   lambda pids: [child for pid in pids for child in children_of(pid)])
