"""What a process of Python's FSDP2 occupies while a BERT trains, as benchmarks/memory_probe.cpp counts it.

  memory.py PRESET     (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set)

Proportional set size, the largest of all ranks: before the model is built, after it is sharded, and the highest
seen behind a backward and behind an optimizer step. The model is built on the meta device and filled shard by
shard, the leanest way that FSDP2 has. Rank 0 prints one JSON object.
"""
import json
import sys

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForQuestionAnswering

import step

TOKENS = 128


def resident_bytes():
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
        own = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    most = torch.tensor([own])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def main():
    preset = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers, hidden, heads = step.PRESETS[preset]
    config = BertConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * hidden, attn_implementation="sdpa")
    before = resident_bytes()
    with torch.device("meta"):
        model = BertForQuestionAnswering(config)
    model = step.sharded(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(0.0, 0.02)
        for name, tensor in model.named_buffers():
            tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) if "position" in name else 0 * tensor)
    built = resident_bytes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    peak = 0
    for _ in range(3):
        ids = torch.randint(1000, (1, TOKENS))
        zero = torch.zeros(1, dtype=torch.long)
        model(input_ids=ids, token_type_ids=torch.zeros_like(ids), attention_mask=torch.ones_like(ids),
              start_positions=zero, end_positions=zero).loss.backward()
        peak = max(peak, resident_bytes())
        optimizer.step()
        peak = max(peak, resident_bytes())
        optimizer.zero_grad(set_to_none=True)
    if dist.get_rank() == 0:
        print(json.dumps({"resident before": before, "resident built": built, "resident peak": peak}),
              flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
