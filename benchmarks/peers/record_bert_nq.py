"""Records the joint model of Natural Questions: examples/bert_qa/tests/records/bert_nq_small.

Run it with .venv-peers/bin/python. The model is transformers' BertModel with its pooler, the heads qa_outputs
and classifier, and the loss of google-research's bert_joint: the mean of the three cross-entropies. Sizes, inputs
and positions are those of record_bert.py. record.safetensors holds, for one padded batch:
  inputs.{input_ids,attention_mask,token_type_ids}  labels.{start_positions,end_positions,answer_types}
  logits.{start,end,types}  loss  grad.NAME for every parameter NAME of the model
"""
import argparse

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import BertModel
from transformers.utils import logging

import record_bert

FOLDER = record_bert.FOLDER.parent / "bert_nq_small"
ANSWER_TYPES = 5


class JointModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config)
        self.qa_outputs = torch.nn.Linear(config.hidden_size, 2)
        self.classifier = torch.nn.Linear(config.hidden_size, ANSWER_TYPES)

    def forward(self, **inputs):
        output = self.bert(**inputs)
        start, end = self.qa_outputs(output.last_hidden_state).unbind(-1)
        return {"start": start, "end": end, "types": self.classifier(output.pooler_output)}


def compute():
    """Returns the configuration, the model and its record."""
    inputs, labels, _ = record_bert.make_batch()
    labels["answer_types"] = torch.tensor([3, 1, 0])
    config = record_bert.small_bert("gelu").config
    model = JointModel(config)
    record_bert.randomize(model)
    model.eval()
    logits = model(**inputs)
    loss = sum(cross_entropy(logits[name], labels[label]) for name, label in
               [("start", "start_positions"), ("end", "end_positions"), ("types", "answer_types")]) / 3
    loss.backward()
    prefixed = record_bert.prefixed
    return config, model, {
        **prefixed("inputs", inputs), **prefixed("labels", labels), **prefixed("logits", logits),
        "loss": loss.detach(), **prefixed("grad", {name: p.grad for name, p in model.named_parameters()})}


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter
                            ).parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    config, model, record = compute()
    FOLDER.mkdir(parents=True, exist_ok=True)
    config.architectures = ["BertForNaturalQuestions"]
    config.save_pretrained(FOLDER)
    save_file({name: p.detach().contiguous() for name, p in model.named_parameters()},
              FOLDER / "model.safetensors", metadata={"format": "pt"})
    save_file(record, FOLDER / "record.safetensors")
    print(f"loss {record['loss'].item():.6f}  -> {FOLDER}")


if __name__ == "__main__":
    main()
