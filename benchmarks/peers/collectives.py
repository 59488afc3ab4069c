"""One rank of gloo for tools/bench collectives: runs each command from stdin and prints the times of its start
and end (by the system's monotonic clock, which all processes share).

usage: RANK=R WORLD_SIZE=N python collectives.py STORE
  all_gather | reduce_scatter  BYTES REPETITIONS   BYTES of the unsharded float32s
  barrier                      0 REPETITIONS
"""
import os
import sys
import time

import torch
import torch.distributed as dist


def value_of(rank, element):
    return ((element * 7 + rank * 131) % 1021).float()


def check(name, bytes_, rank, size, whole, piece):
    """Checks the collective once on known values, before any time is measured."""
    numel = piece.numel()
    if name == "all_gather":
        elements = torch.arange(numel)
        piece.copy_(value_of(rank, elements))
        dist.all_gather_into_tensor(whole, piece)
        right = all(torch.equal(whole[r * numel:(r + 1) * numel], value_of(r, elements))
                    for r in range(size))
    else:
        elements = torch.arange(numel * size)
        whole.copy_(value_of(rank, elements))
        dist.reduce_scatter_tensor(piece, whole)
        mine = elements[rank * numel:(rank + 1) * numel]
        right = torch.equal(piece, sum(value_of(r, mine) for r in range(size)))
    if not right:
        sys.exit(f"gloo: {name} of {bytes_} bytes is wrong on rank {rank}")


def main():
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], size), rank=rank, world_size=size)
    memory = {}
    for line in sys.stdin:
        name, bytes_, repetitions = line.split()
        issue = dist.barrier
        if name != "barrier":
            case = (name, int(bytes_))
            if case not in memory:
                memory.clear()
                numel = int(bytes_) // 4
                memory[case] = torch.ones(numel), torch.ones(numel // size)
                check(name, bytes_, rank, size, *memory[case])
            whole, piece = memory[case]
            issue = ((lambda: dist.all_gather_into_tensor(whole, piece)) if name == "all_gather"
                     else (lambda: dist.reduce_scatter_tensor(piece, whole)))
        dist.barrier()
        start = time.monotonic()
        for _ in range(int(repetitions)):
            issue()
        print(start, time.monotonic(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
