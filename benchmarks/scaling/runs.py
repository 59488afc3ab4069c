"""One run of a cell: its processes started, watched from outside, and what rank 0 says."""
import contextlib
import json
import os
import subprocess
import tempfile
import time

# Reading how much is resident walks a process's page tables and holds up its page faults meanwhile: what a round
# of readings takes is waited for so many times before the next.
PAUSE = 10
SHORTEST_PAUSE = 0.02
# A run is ended before the machine has nothing left: there, the kernel would choose what ends.
LEAST_FREE = 700 * 2**20
TIME_LIMIT = 1800  # seconds


class RunFailed(Exception):
    """A run that came to nothing: its exit code, and why in a line."""

    def __init__(self, code, why):
        super().__init__(why)
        self.code, self.why = code, why


CANNOT_HOLD = "this machine cannot hold it: "


class NoMemory(RunFailed):
    """It was ended, as the machine had nothing left; why begins with CANNOT_HOLD."""


def free_bytes():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:"))


def resident_bytes(pid):
    """Proportional set size: pages that n processes share count 1/n in each. 0 where it has ended."""
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
    """The most that all ranks together ever were, with their libraries. What one of them grew to it tells itself: the
    kernel keeps that, and no reading comes too late."""

    def __init__(self):
        self.together = 0

    def look(self, pids, is_done):
        """A round of readings; one during which rank 0 said its last word counts for nothing, as who shares
        memory with a rank that has ended has more of its own."""
        together = sum(resident_bytes(pid) for pid in pids)
        if not is_done():
            self.together = max(self.together, together)


def why_of(text):
    """The line of an error output that says what was wrong."""
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
    """Runs all commands beside each other until each has ended; what the first JSON line of their outputs says,
    and a Watch of the processes that pids_of(commands' own) names. Raises RunFailed."""
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
                break  # the others would wait for one that has failed
            time.sleep(max(SHORTEST_PAUSE, PAUSE * (time.monotonic() - round_began)))
        failed = [process for process in processes if process.poll()]
        if failed:
            time.sleep(1)  # for what the others have to say
            stop(processes)
            errors.seek(0)
            raise RunFailed(failed[0].returncode, why_of(errors.read()))
        output.seek(0)
        line = next((line for line in output if line.startswith("{")), None)
        if line is None:
            raise RunFailed(0, "ended without a result")
        return json.loads(line), watch


def run_probe(programs, words, ranks=1):
    """scaling_probe by fsdp-run, whose children are the ranks; alone for one rank."""
    probe = [programs / "scaling_probe", *words]
    if ranks == 1:
        return measure([probe], lambda pids: pids)
    return measure([[programs / "fsdp-run", "-n", ranks, *probe]],
                   lambda pids: [child for pid in pids for child in children_of(pid)])
