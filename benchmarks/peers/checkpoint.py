"""Times PyTorch's ways to save a checkpoint, with the tensors of benchmarks/checkpoint_probe.cpp.

  checkpoint.py UNITS WIDTH FOLDER     (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set)

Each rank reads commands, one a line, the same on all ranks; rank 0 prints the seconds of each. torch and safetensors
are torch.save and safetensors' save_file on rank 0, of whole tensors that are in its memory already, and an fsync of
the file. dcp is torch.distributed.checkpoint over gloo: each rank writes its half, as DTensors, and syncs its file.
dcp-async is the time until its async_save returns; the files are complete later. Files are removed after each command.
"""
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.tensor import Shard, distribute_tensor


def tensors_of(units, width):
    """Returns the weights and both moments of AdamW."""
    shapes = {"weight": (width, width), "bias": (width,)}
    return {f"{part}.layer{unit}.{name}": torch.rand(shape) for part in ("model", "exp_avg", "exp_avg_sq")
            for unit in range(units) for name, shape in shapes.items()}


def sync(file):
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save(command, whole, sharded, folder):
    """Returns a future if the files are not complete yet."""
    if command == "dcp":
        dcp.save(sharded, checkpoint_id=folder)
    elif command == "dcp-async":
        return dcp.async_save(sharded, checkpoint_id=folder)
    elif dist.get_rank() == 0:
        file = folder / command
        if command == "torch":
            torch.save(whole, file)
        else:
            save_file(whole, file)
        sync(file)
    return None


def main():
    units, width, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]) / "peer"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    whole = tensors_of(units, width)
    sharded = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}
    if dist.get_rank() != 0:
        whole = {}
    for line in sys.stdin:
        if dist.get_rank() == 0:
            folder.mkdir()
        dist.barrier()
        began = time.perf_counter()
        saving = save(line.strip(), whole, sharded, folder)
        if saving is None:
            dist.barrier()
        seconds = time.perf_counter() - began
        if saving is not None:
            saving.result()
            dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder)
            print(seconds, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
