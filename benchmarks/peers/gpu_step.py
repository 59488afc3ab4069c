"""Runs a BERT's training step with Python's FSDP2 or plain PyTorch on one GPU, with the commands of gpu_probe's step.

  gpu_step.py cpu|cuda plain|fsdp2 PRESET WINDOWS TOKENS float32|bfloat16 CLIP

Reads "run N" and prints milliseconds of a step, or "loss" and prints the last loss. Initial values and windows are
those of benchmarks/gpu_probe/steps.cpp. The peers have their fastest settings: fused AdamW, sdpa attention, in bfloat16
autocast for plain PyTorch and a mixed-precision policy for FSDP2, each over float32 parameters.
"""
import contextlib
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import BertConfig, BertForQuestionAnswering

from step import PRESETS, set_initial_values, windows_of


def build(preset):
    layers, hidden, heads = PRESETS[preset]
    model = BertForQuestionAnswering(BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa"))
    set_initial_values(model)
    return model


def sharded(model, device, narrow):
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if narrow else None, reduce_dtype=torch.float32)
    for unit in (model.bert.embeddings.word_embeddings, *model.bert.encoder.layer, model):
        fully_shard(unit, mp_policy=policy)
    return model


class Training:
    def __init__(self, device, mode, preset, windows, tokens, dtype, clip):
        self.device, self.clips = device, clip == "1"
        narrow = dtype == "bfloat16"
        model = build(preset).to(device)
        self.model = sharded(model, device, narrow) if mode == "fsdp2" else model
        self.casts = narrow and mode == "plain"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.batch = {name: tensor.to(device) for name, tensor in windows_of(int(windows), int(tokens), 0).items()}
        self.loss = None

    def step(self):
        casting = torch.autocast(self.device, torch.bfloat16) if self.casts else contextlib.nullcontext()
        with casting:
            loss = self.model(**self.batch).loss
        loss.backward()
        if self.clips:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.detach()

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def run(self, steps):
        self.step()  # allocates again: the cache was emptied
        self.wait()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        seconds = time.perf_counter() - began
        if self.device == "cuda":
            torch.cuda.empty_cache()  # for the next contestant
        return seconds * 1e3 / steps


def main():
    torch.set_num_threads(1)
    numpy.seterr(over="ignore")
    training = Training(*sys.argv[1:])
    for line in sys.stdin:
        name, *arguments = line.split()
        print(training.run(int(arguments[0])) if name == "run" else training.loss.item(), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
