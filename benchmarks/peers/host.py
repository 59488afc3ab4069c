"""Runs FSDP2 for tools/bench host: a chain of small layers, plain and with fully_shard on each layer and the root.
Reads a command from each line and prints microseconds of a unit and step (forward, backward, zero_grad).

usage: python host.py WORLD UNITS ROWS      WORLD 1: gloo; more: this is rank 0, collectives do nothing
  plain | sharded  STEPS
"""
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 64


def chain(units):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(units)))


def join(world):
    if world == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    return init_device_mesh("cpu", (world,))


def step(model, x):
    loss = model(x).sum()
    loss.backward()
    model.zero_grad()
    return loss


def main():
    torch.set_num_threads(1)
    world, units, rows = map(int, sys.argv[1:])
    mesh = join(world)
    x = torch.ones(rows, WIDTH)
    models = {"plain": chain(units), "sharded": chain(units)}
    for layer in models["sharded"]:
        fully_shard(layer, mesh=mesh)
    fully_shard(models["sharded"], mesh=mesh)
    if world == 1 and step(models["plain"], x).item() != step(models["sharded"], x).item():
        sys.exit("FSDP2 on one rank computes another loss than plain PyTorch")
    for line in sys.stdin:
        name, steps = line.split()
        start = time.perf_counter()
        for _ in range(int(steps)):
            step(models[name], x)
        print((time.perf_counter() - start) * 1e6 / (int(steps) * units), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
