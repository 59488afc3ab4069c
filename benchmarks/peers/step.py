"""Times training steps of a BERT with Python's FSDP2, DDP or neither, as benchmarks/step_probe.cpp does.

  step.py fsdp2|fsdp2-hybrid|ddp|plain PRESET WINDOWS TOKENS STEPS
                                         (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set; LOCAL_WORLD_SIZE for hybrid)

Initial values and windows follow from the formulas of that program, so losses are comparable. The peers have
their best settings for two cores: one thread for each rank, fused AdamW, the same units, sdpa attention, for DDP
gradients as views of its buckets. Rank 0 prints one JSON object.
"""
import json
import os
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForQuestionAnswering

PRESETS = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "medium": (8, 512, 8),
           "base": (12, 768, 12), "large": (24, 1024, 16)}


def scramble(value):
    value = value ^ (value >> numpy.uint32(16))
    value = value * numpy.uint32(0x45D9F3B)
    return value ^ (value >> numpy.uint32(16))


def name_hash(name):
    result = 2166136261
    for byte in name.encode():
        result = ((result ^ byte) * 16777619) & 0xFFFFFFFF
    return numpy.uint32(result)


@torch.no_grad()
def set_initial_values(model):
    for name, tensor in model.named_parameters():
        if tensor.dim() == 1:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        index = numpy.arange(tensor.numel(), dtype=numpy.uint32) * numpy.uint32(2654435761)
        bits = scramble(index + name_hash(name))
        values = ((bits / 4294967296.0 - 0.5) * 0.07).astype(numpy.float32)
        tensor.copy_(torch.from_numpy(values).view_as(tensor))


def windows_of(windows, tokens, rank):
    count = windows * tokens
    index = numpy.arange(rank * count, (rank + 1) * count, dtype=numpy.uint32)
    ids = torch.from_numpy((1000 + scramble(index) % 28000).astype(numpy.int64)).view(windows, tokens)
    first = ids[:, 0] % (tokens // 2)
    return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids),
            "attention_mask": torch.ones_like(ids), "start_positions": first,
            "end_positions": first + ids[:, 1] % (tokens // 2)}


def wrapped(model, mode):
    if mode == "plain":
        return model
    dist.init_process_group("gloo")
    if mode == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    return sharded(model, mesh_of_hosts() if mode == "fsdp2-hybrid" else None)


def mesh_of_hosts():
    """Returns a mesh that shards in a host and replicates over hosts."""
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return init_device_mesh("cpu", (dist.get_world_size() // local, local), mesh_dim_names=("replicate", "shard"))


def sharded(model, mesh):
    """Shards the model in the units of examples/bert_qa."""
    fully_shard(model.bert.embeddings.word_embeddings, mesh=mesh)
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    mode, preset, windows, tokens, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    torch.set_num_threads(1)
    numpy.seterr(over="ignore")
    layers, hidden, heads = PRESETS[preset]
    model = BertForQuestionAnswering(BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * hidden, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa"))
    set_initial_values(model)
    model = wrapped(model, mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batch = windows_of(windows, tokens, int(os.environ.get("RANK", "0")))
    losses, step_ms = [], []
    for _ in range(steps):
        began = time.perf_counter()
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_ms.append((time.perf_counter() - began) * 1e3)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"losses": losses, "step_ms": step_ms}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
