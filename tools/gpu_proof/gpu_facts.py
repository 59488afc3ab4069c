"""What GPUs this process sees, as the program gpu_facts tells."""
import dataclasses
import json
import os

import programs

SHARING_NCCL = (2, 30, 3)  # from here on several ranks may have one GPU


class NoFacts(Exception):
    """The program came to nothing; says why."""


@dataclasses.dataclass
class Facts:
    gpus: list  # a dict each: name, memory_bytes, capability, multiprocessors
    nccl: str   # "2.30.7"; empty where there is none
    cuda: str = ""
    driver: str = ""

    @property
    def device(self):
        """"2 × NVIDIA H100, 80 GB"."""
        first = self.gpus[0]
        count = f"{len(self.gpus)} × " if len(self.gpus) > 1 else ""
        return f"{count}{first['name']}, {first.get('memory_bytes', 0) / 1e9:.0f} GB"

    def cannot_share(self):
        """Why two ranks cannot have one GPU; None where they can."""
        try:
            version = tuple(map(int, self.nccl.split(".")))
        except ValueError:
            return "there is no NCCL"
        if version >= SHARING_NCCL:
            return None
        return f"NCCL {self.nccl} refuses two ranks on one GPU, {'.'.join(map(str, SHARING_NCCL))} does not"


def read(program, deadline, log):
    """Raises NoFacts."""
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
    """The environment of a process that is to see one GPU: the first of those that this one sees."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"}


def shared_gpu():
    """The environment of ranks that share one GPU."""
    return {**first_gpu(), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
