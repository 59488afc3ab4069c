"""Kills or stops one rank of a training job. The other ranks must end in time and name that rank."""
import dataclasses
import re
import shutil

import parts
import programs

END_WITHIN = 10.0    # seconds; for a stopped rank after the collective's deadline
STOP_DEADLINE = 8.0  # seconds, time-out of a collective
STEP = 5             # step of the fault
STEPS = 10**9        # more than the job reaches
GUILTY = 1
CODE = 75            # exit code of fsdp-run and of the surviving ranks


@dataclasses.dataclass
class Fault:
    name: str     # argument of training_rank
    timeout: float
    limit: float  # seconds from the fault to the end of the job
    cause: str    # text in the other ranks' errors


KILLED = Fault("kill", 60.0, END_WITHIN, f"rank {GUILTY} was killed by signal 9 (SIGKILL)")
STOPPED = Fault("stop", STOP_DEADLINE, STOP_DEADLINE + END_WITHIN, f"rank {GUILTY} did not arrive within")


def hit_at(log):
    """Returns the time of the fault on the clock of time.monotonic(), or None if there was none."""
    text = log.read_text(errors="replace") if log.exists() else ""
    match = re.search(r"^hit ([0-9.]+)$", text, re.MULTILINE)
    return float(match[1]) if match else None


def require_named(fault, ranks, logs):
    for rank in range(ranks):
        if rank == GUILTY:
            continue
        said = (logs / f"rank-{rank}.err").read_text(errors="replace") if logs.exists() else ""
        own = [line for line in said.splitlines() if line.startswith(f"fsdp: error[{CODE}] rank {rank}/{ranks} ")]
        if not any(fault.cause in line for line in own):
            raise parts.Failed(f"rank {rank} does not say '{fault.cause}': {programs.telling_line(said) or 'nothing'}")


def run(bin_folder, fault, ranks, logs, deadline, environment, clock):
    """Trains a tiny BERT on `ranks` ranks until the fault ends the job, and returns a line with the time that took.
    `clock` is time.monotonic. Raises parts.Failed."""
    shutil.rmtree(logs, ignore_errors=True)
    ended = programs.run(
        [bin_folder / "fsdp-run", "-n", ranks, "--log-dir", logs, bin_folder / "training_rank", STEPS,
         int(fault.timeout * 1000), fault.name, GUILTY, STEP, "gather", 0, 0],
        deadline, logs.with_suffix(".log"), environment)
    over = clock()
    hit = hit_at(logs / f"rank-{GUILTY}.out")
    if hit is None:
        raise parts.Failed(f"the fault never reached the rank: the job {ended.why}")
    seconds = over - hit
    if ended.timed_out or seconds > fault.limit:
        raise parts.Failed(f"the job ran for {seconds:.1f} s after the fault, expected at most {fault.limit:.0f} s: "
                           f"{ended.why}")
    if ended.code != CODE:
        raise parts.Failed(f"the job {ended.why}, expected code {CODE}")
    require_named(fault, ranks, logs)
    return f"{ranks} ranks, all out after {seconds:.1f} s, the rank named by all"
