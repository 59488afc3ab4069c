"""What a process of Python's FSDP2 occupies while a BERT trains, as benchmarks/memory_probe.cpp counts it.

  memory.py train PRESET          (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set)
  memory.py count PRESET WORLD    rank 0 of WORLD, collectives move nothing

train: proportional set size, the largest of all ranks, before the model is built and after it is sharded; who
started it watches the process while it trains. count: the bytes of FSDP2's own buffers at the highest point of a
forward and backward, by PyTorch's FSDPMemTracker; without dropout, whose activations would move that point. The
model is built on the meta device and filled shard by shard, the leanest way that FSDP2 has. Rank 0 prints one
JSON object.
"""
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import BertConfig, BertForQuestionAnswering

import step

TOKENS = 128
STEPS = 4


def resident_bytes():
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
        own = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    most = torch.tensor([own])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def build(preset, **settings):
    layers, hidden, heads = step.PRESETS[preset]
    config = BertConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * hidden, attn_implementation="sdpa", **settings)
    with torch.device("meta"):
        model = BertForQuestionAnswering(config)
    model = step.sharded(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(0.0, 0.02)
        for name, tensor in model.named_buffers():
            tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) if "position" in name else 0 * tensor)
    return model


def forward_and_backward(model):
    ids = torch.randint(1000, (1, TOKENS))
    zero = torch.zeros(1, dtype=torch.long)
    model(input_ids=ids, token_type_ids=torch.zeros_like(ids), attention_mask=torch.ones_like(ids),
          start_positions=zero, end_positions=zero).loss.backward()


def train(preset):
    dist.init_process_group("gloo")
    before = resident_bytes()
    model = build(preset)
    built = resident_bytes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(STEPS):
        forward_and_backward(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"resident before": before, "resident built": built}


def count(preset, world):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    model = build(preset, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tracker = FSDPMemTracker(model)
    with tracker:
        forward_and_backward(model)
    peak = {str(getattr(kind, "value", kind)): size
            for kind, size in tracker.get_tracker_snapshot("peak")[torch.device("cpu")].items()}
    # Moments are added by their formula: the tracker counts an optimizer's tensors whole, not by shard.
    moments = 8 * sum(parameter.numel() for parameter in model.parameters()) // world
    own = sum(size for kind, size in peak.items() if kind not in ("Total", "Activation", "Temp", "Inputs"))
    return {"buffers peak": own + moments, "with gradients peak": peak["Total"] - peak["Activation"] + moments}


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "count":
        print(json.dumps(count(sys.argv[2], int(sys.argv[3]))), flush=True)
    else:
        seen = train(sys.argv[2])
        if dist.get_rank() == 0:
            print(json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
