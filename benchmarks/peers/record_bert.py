"""Records the results of Python transformers for a small BERT: examples/bert_qa/tests/records/bert_small.

Run it with .venv-peers/bin/python. The same seed gives the same files. model.safetensors and config.json
are an ordinary model folder. record.safetensors holds, for one padded batch:
  inputs.{input_ids,attention_mask,token_type_ids}  labels.{start_positions,end_positions}
  logits.{start,end}  loss  grad.NAME for every parameter NAME of the model
With the same weights and inputs it also holds:
  gelu_new.{logits.start,logits.end,loss}            hidden_act gelu_new instead of gelu
  ignored.{labels.start_positions,labels.end_positions,loss}   some labels at or past the length
"""

import argparse
import pathlib

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForQuestionAnswering
from transformers.utils import logging

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/bert_qa/tests/records/bert_small"
LENGTHS = [24, 17, 9]  # tokens of each sequence, which is padded to 24
SEGMENT_STARTS = [8, 6, 4]


def small_bert(hidden_act):
    config = BertConfig(
        vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=32, hidden_act=hidden_act,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")
    return BertForQuestionAnswering(config)


def randomize(model):
    """Changes every tensor from its default, so that a test notices a tensor that was not loaded."""
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm_weight = "LayerNorm.weight" in name
            parameter.copy_(1 + 0.1 * noise if norm_weight else 0.15 * noise)


def make_batch():
    generator = torch.Generator().manual_seed(21)
    rows, width = len(LENGTHS), max(LENGTHS)
    columns = torch.arange(width)
    attention_mask = (columns < torch.tensor(LENGTHS)[:, None]).long()
    token_type_ids = (columns >= torch.tensor(SEGMENT_STARTS)[:, None]).long() * attention_mask
    input_ids = torch.randint(1, 96, (rows, width), generator=generator) * attention_mask
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask,
              "token_type_ids": token_type_ids}
    labels = {"start_positions": torch.tensor([9, 6, 0]), "end_positions": torch.tensor([12, 16, 0])}
    ignored = {"start_positions": torch.tensor([9, width, 0]),
               "end_positions": torch.tensor([12, width + 5, 0])}
    return inputs, labels, ignored


def prefixed(prefix, tensors):
    return {f"{prefix}.{name}": tensor.detach().clone().contiguous()
            for name, tensor in tensors.items()}


def results(output):
    return {"logits.start": output.start_logits, "logits.end": output.end_logits,
            "loss": output.loss}


def compute():
    """Returns the model and its record."""
    inputs, labels, ignored = make_batch()
    model = small_bert("gelu")
    randomize(model)
    model.eval()
    output = model(**inputs, **labels)
    output.loss.backward()

    variant = small_bert("gelu_new")
    variant.load_state_dict(model.state_dict())
    variant.eval()
    with torch.no_grad():
        gelu_new = variant(**inputs, **labels)
        ignored_loss = model(**inputs, **ignored).loss

    return model, {
        **prefixed("inputs", inputs), **prefixed("labels", labels),
        **{name: tensor.detach().clone() for name, tensor in results(output).items()},
        **prefixed("grad", {name: p.grad for name, p in model.named_parameters()}),
        **prefixed("gelu_new", results(gelu_new)),
        **prefixed("ignored.labels", ignored), "ignored.loss": ignored_loss,
    }


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter
                            ).parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model, record = compute()
    FOLDER.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(FOLDER)
    save_file(record, FOLDER / "record.safetensors")
    print(f"loss {record['loss'].item():.6f}  gelu_new {record['gelu_new.loss'].item():.6f}  "
          f"ignored {record['ignored.loss'].item():.6f}  -> {FOLDER}")


if __name__ == "__main__":
    main()
