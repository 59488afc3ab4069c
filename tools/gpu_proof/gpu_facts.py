"""Reads the facts about the GPUs that this process sees from the program gpu_facts."""
import dataclasses
import json
import os

import programs

SHARING_NCCL = (2, 30, 3)  # the first version that allows several ranks on one GPU


class NoFacts(Exception):
    """The error if the program returned no facts. The message is the reason."""


@dataclasses.dataclass
class Facts:
    gpus: list  # dicts with name, memory_bytes, capability, multiprocessors
    nccl: str   # "2.30.7"; empty if there is none
    cuda: str = ""
    driver: str = ""

    @property
    def device(self):
        """Returns "2 × NVIDIA H100, 80 GB"."""
        first = self.gpus[0]
        count = f"{len(self.gpus)} × " if len(self.gpus) > 1 else ""
        return f"{count}{first['name']}, {first.get('memory_bytes', 0) / 1e9:.0f} GB"

    def cannot_share(self):
        """Returns the reason why two ranks cannot share a GPU, or None if they can."""
        try:
            version = tuple(map(int, self.nccl.split(".")))
        except ValueError:
            return "there is no NCCL"
        if version >= SHARING_NCCL:
            return None
        return f"NCCL {self.nccl} refuses two ranks on one GPU, {'.'.join(map(str, SHARING_NCCL))} does not"


def read(program, deadline, log):
    """Runs the program and returns its facts. Raises NoFacts."""
    try:
        ended = programs.run([program], deadline, log)
        line = next((line for line in ended.output.splitlines() if line.startswith("{")), "")
        told = json.loads(line) if ended.code == 0 else None
    except (OSError, ValueError) as error:
        raise NoFacts(f"{program}: {error}") from None
    if not isinstance(told, dict) or not isinstance(told.get("gpus"), list):
        raise NoFacts(f"{program} {ended.why}")
    if not told["gpus"]:
        raise NoFacts(f"this process sees no GPU: {told.get('why_none')}")
    return Facts(told["gpus"], told.get("nccl", ""), told.get("runtime_cuda", ""), told.get("driver_cuda", ""))


def first_gpu():
    """Returns the environment of a process that sees only the first GPU of this process."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"}


def shared_gpu():
    """Returns the environment of ranks that share one GPU."""
    return {**first_gpu(), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
