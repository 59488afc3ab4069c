"""A rank of PyTorch that trains the model of benchmarks/scaling_probe.cpp, for benchmarks/memory_scaling.

  scaling.py MODE LAYERS HIDDEN HEADS FAMILY WINDOWS TOKENS STEPS   (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set)
  scaling.py count LAYERS HIDDEN HEADS FAMILY WINDOWS TOKENS WORLD  rank 0 of WORLD, collectives move nothing

MODE: FSDP2, FSDP1, DDP, ZeroRedundancyOptimizer, or DataParallel (one process, all its GPUs). FAMILY: bert or gpt2.
Each has its best settings: one thread for each rank, a model that is made on the meta device and filled when it is
sharded, fused AdamW, sdpa attention, gradients as views of DDP's buckets; and our units: the word embeddings, each
layer, and the rest. A megatron-bert has BERT's parameters in another order, and transformers has no sdpa for it, so
BERT is used instead.

Rank 0 prints one JSON object: the largest rank's own resident memory before and after the model is made, step times
and losses. The starter watches the processes. count prints the bytes of FSDP2's own buffers at the highest point of a
forward and backward, by PyTorch's FSDPMemTracker, without dropout, whose activations would change it.
"""
import ctypes
import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import BertConfig, BertForQuestionAnswering, GPT2Config, GPT2LMHeadModel

SETTINGS = {"lr": 1e-4, "weight_decay": 0.01, "fused": True}


def sizes_in(file):
    with open(file, encoding="ascii") as lines:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.rstrip().endswith(" kB")}


def most_of_ranks(size):
    most = torch.tensor([size])
    if dist.is_initialized():
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def resident_bytes():
    """Returns the same quantity as resident_bytes of scaling_probe.cpp."""
    sizes = sizes_in("/proc/self/smaps_rollup")
    return most_of_ranks(sizes["Pss_Anon"] + sizes["Pss_Shmem"])


def highest_resident_bytes():
    """Returns the same quantity as highest_resident_bytes of scaling_probe.cpp."""
    status = sizes_in("/proc/self/status")
    return most_of_ranks(status["VmHWM"] - status["RssFile"] - status["RssShmem"] +
                         sizes_in("/proc/self/smaps_rollup")["Pss_Shmem"])


def forget_highest_resident():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


class Bert:
    def __init__(self, layers, hidden, heads, dropout=0.1):
        config = BertConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                            intermediate_size=4 * hidden, attn_implementation="sdpa", hidden_dropout_prob=dropout,
                            attention_probs_dropout_prob=dropout)
        with torch.device("meta"):
            self.model = BertForQuestionAnswering(config)
        self.units = [self.model.bert.embeddings.word_embeddings, *self.model.bert.encoder.layer]

    def tie(self):
        """Does nothing, because no parameter is used in two modules."""

    @staticmethod
    def loss(model, batch, tokens, device):
        ids = torch.zeros(batch, tokens, dtype=torch.long, device=device)
        first = torch.zeros(batch, dtype=torch.long, device=device)
        return model(input_ids=ids, token_type_ids=ids, attention_mask=torch.ones_like(ids),
                     start_positions=first, end_positions=first).loss.mean()


class Gpt2:
    def __init__(self, layers, hidden, heads, dropout=0.0):
        config = GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, resid_pdrop=dropout, embd_pdrop=dropout,
                            attn_pdrop=dropout, activation_function="gelu_pytorch_tanh", use_cache=False,
                            attn_implementation="sdpa")
        with torch.device("meta"):
            self.model = GPT2LMHeadModel(config)
        self.units = list(self.model.transformer.h)
        self.tie()

    def tie(self):
        """Ties the parameters again, because a fill on another device makes two of them."""
        self.model.lm_head.weight = self.model.transformer.wte.weight

    @staticmethod
    def loss(model, batch, tokens, device):
        ids = torch.zeros(batch, tokens, dtype=torch.long, device=device)
        logits = model(input_ids=ids).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


FAMILIES = {"bert": Bert, "gpt2": Gpt2}


@torch.no_grad()
def set_values(parameters, buffers):
    for _, tensor in parameters:
        if not tensor.is_meta:
            tensor.normal_(0.0, 0.02)
    for name, tensor in buffers:
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) if "position" in name else torch.zeros_like(tensor))


def fill(task, device):
    """Allocates and initialises the parameters that are on the meta device."""
    task.model.to_empty(device=device)
    task.tie()
    set_values(task.model.named_parameters(), task.model.named_buffers())


def fully_sharded(task, device):
    for unit in task.units:
        fully_shard(unit)
    fully_shard(task.model)
    fill(task, device)
    return task.model


def flat_sharded(task, device):
    """Returns the model sharded by FSDP1, which fills each unit when it shards it."""
    @torch.no_grad()
    def fill_own(module):
        module.to_empty(device=device, recurse=False)
        task.tie()
        set_values(module.named_parameters(recurse=False), module.named_buffers(recurse=False))

    units = {id(unit) for unit in task.units}
    return FullyShardedDataParallel(task.model, device_id=device, param_init_fn=fill_own, use_orig_params=True,
                                    auto_wrap_policy=CustomPolicy(lambda module: id(module) in units))


def replicated(task, device):
    fill(task, device)
    return DistributedDataParallel(task.model, gradient_as_bucket_view=True)


def on_all_gpus(task, device):
    fill(task, device)
    return DataParallel(task.model)


MODES = {"FSDP2": fully_sharded, "FSDP1": flat_sharded, "DDP": replicated,
         "ZeroRedundancyOptimizer": replicated, "DataParallel": on_all_gpus}


def optimizer_of(mode, model):
    if mode == "ZeroRedundancyOptimizer":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True,
                                       **SETTINGS)
    return torch.optim.AdamW(model.parameters(), **SETTINGS)


def train(mode, task, batch, tokens, steps):
    device = torch.device("cuda" if mode == "DataParallel" else "cpu")
    if device.type == "cpu":
        dist.init_process_group("gloo")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # free memory left by imports is then not counted
    before = resident_bytes()
    forget_highest_resident()
    model = MODES[mode](task, device)
    built = resident_bytes()
    optimizer = optimizer_of(mode, model)
    losses, step_ms = [], []
    for _ in range(steps):
        began = time.perf_counter()
        loss = task.loss(model, batch, tokens, device)
        loss.backward()
        losses.append(loss.item())
        del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_ms.append((time.perf_counter() - began) * 1e3)
    return {"resident before": before, "resident built": built, "resident peak": highest_resident_bytes(),
            "losses": losses, "step ms": step_ms}


def count(task, batch, tokens, world):
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    model = fully_sharded(task, torch.device("cpu"))
    tracker = FSDPMemTracker(model)
    with tracker:
        task.loss(model, batch, tokens, "cpu").backward()
    peak = {str(getattr(kind, "value", kind)): size
            for kind, size in tracker.get_tracker_snapshot("peak")[torch.device("cpu")].items()}
    # The moments are computed by their formula, because the tracker counts an optimizer's tensors unsharded.
    moments = 8 * sum(parameter.numel() for parameter in model.parameters()) // world
    own = sum(size for kind, size in peak.items() if kind not in ("Total", "Activation", "Temp", "Inputs"))
    return {"buffers peak": own + moments, "with gradients peak": peak["Total"] - peak["Activation"] + moments}


def main():
    mode, shape, family, numbers = sys.argv[1], list(map(int, sys.argv[2:5])), sys.argv[5], list(map(int, sys.argv[6:]))
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    if mode == "count":
        seen = count(FAMILIES[family](*shape, dropout=0.0), *numbers)
    else:
        seen = train(mode, FAMILIES[family](*shape), *numbers)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(seen), flush=True)
    if dist.is_initialized():
        if mode != "count":
            dist.barrier()  # no rank may end before the watcher has read that line
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
