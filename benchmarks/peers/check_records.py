"""Computes the records of examples/bert_qa/tests/records and tests/optim/records again and compares them, so that the
tests' records agree with the installed transformers and PyTorch. Exit code 0 if all agree. Needs the model
(tools/setup --model).
"""

import json
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.utils import logging

import record_bert
import record_bert_nq
import record_megatron
import record_squad
import reference_run
import squad

sys.path.append(str(reference_run.ROOT / "tests/optim"))
import record_lr_schedulers  # noqa: E402


def check_bert():
    _, computed = record_bert.compute()
    recorded = load_file(record_bert.FOLDER / "record.safetensors")
    assert recorded.keys() == computed.keys(), recorded.keys() ^ computed.keys()
    largest = max((recorded[name].double() - computed[name].double()).abs().max().item()
                  for name in recorded)
    print(f"bert_small: {len(recorded)} tensors, largest difference {largest:.2g}")
    return largest <= 1e-6


def check_bert_nq():
    _, _, computed = record_bert_nq.compute()
    recorded = load_file(record_bert_nq.FOLDER / "record.safetensors")
    assert recorded.keys() == computed.keys(), recorded.keys() ^ computed.keys()
    largest = max((recorded[name].double() - computed[name].double()).abs().max().item()
                  for name in recorded)
    print(f"bert_nq_small: {len(recorded)} tensors, largest difference {largest:.2g}")
    return largest <= 1e-6


def check_megatron():
    computed = record_megatron.make_record(record_megatron.make_model())
    recorded = load_file(record_megatron.FOLDER / "record.safetensors")
    assert recorded.keys() == computed.keys(), recorded.keys() ^ computed.keys()
    largest = max((recorded[name].double() - computed[name].double()).abs().max().item()
                  for name in recorded)
    print(f"megatron_small: {len(recorded)} tensors, largest difference {largest:.2g}")
    return largest <= 1e-6


def check_windows():
    computed = record_squad.compute(record_squad.MODEL, record_squad.QUESTIONS)
    recorded = record_squad.RECORD.read_text(encoding="utf-8").splitlines(keepends=True)
    different = sum(a != b for a, b in zip(recorded, computed))
    print(f"squad_windows: {len(computed)} computed, {len(recorded)} recorded, {different} different")
    return recorded == computed


def check_reference():
    """Compares the losses and norms of the first steps. They change by 4e-7 if only the number of threads differs."""
    path = reference_run.ROOT / "examples/bert_qa/tests/records/reference_run.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))
    windows = squad.make_windows(AutoTokenizer.from_pretrained(record_squad.MODEL),
                                 squad.read_questions(record_squad.QUESTIONS))
    head = record_squad.QUESTIONS.parent / "qa-head-minilm.safetensors"
    model = reference_run.load_model(record_squad.MODEL, head)
    losses, norms = reference_run.train(model, windows, steps=3,
                                        total_steps=recorded["total_steps"])
    pairs = [*zip(losses, recorded["losses"]), *zip(norms, recorded["grad_norms"])]
    largest = max(abs(a - b) / b for a, b in pairs)
    print(f"reference_run: {len(losses)} steps, largest relative difference {largest:.2g}")
    return largest <= 5e-6


def check_lr_schedulers():
    """Compares texts exactly, and numbers (`value`, `value*count`) with a tolerance for other libraries' cosines."""
    computed = [line.split() for line in record_lr_schedulers.compute()]
    recorded = [line.split() for line in record_lr_schedulers.RECORD.read_text(encoding="ascii").splitlines()]
    assert list(map(len, recorded)) == list(map(len, computed))
    largest = 0.0
    for mine, own in zip(sum(computed, []), sum(recorded, [])):
        if mine == own:
            continue
        (a, *times), (b, *own_times) = mine.split("*"), own.split("*")
        assert times == own_times, (mine, own)
        largest = max(largest, abs(float(a) - float(b)) / float(b))
    print(f"lr_schedulers: {len(recorded)} lines, largest relative difference {largest:.2g}")
    return largest <= 1e-12


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    results = [check_bert(), check_megatron(), check_windows(), check_reference(), check_lr_schedulers()]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
