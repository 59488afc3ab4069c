"""Runs fsdp-doctor and interprets its exit code."""
import dataclasses

import programs

READY, NO_GPU = 0, 78


@dataclasses.dataclass
class Diagnosis:
    is_ready: bool
    no_gpu: bool
    why: str  # reason if the machine is not ready


def ask(program, deadline, log):
    try:
        ended = programs.run([program], deadline, log)
    except OSError as error:
        return Diagnosis(False, False, f"{program} cannot be started: {error.strerror}")
    if ended.code == READY:
        return Diagnosis(True, False, "")
    if ended.code == NO_GPU:
        return Diagnosis(False, True, programs.reason_of(ended.output) or "the doctor found no GPU")
    return Diagnosis(False, False, ended.why)
