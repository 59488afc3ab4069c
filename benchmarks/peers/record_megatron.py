"""Records the results of Python transformers for a small pre-LN BERT: examples/bert_qa/tests/records/megatron_small.

Does the same as record_bert.py for model_type megatron-bert, on the same batch. Run it with .venv-peers/bin/python.
record.safetensors holds inputs, labels, logits, loss and grad.NAME, in the same form.
"""

import argparse

from safetensors.torch import save_file
import torch
from transformers import MegatronBertConfig, MegatronBertForQuestionAnswering
from transformers.utils import logging

import record_bert

FOLDER = record_bert.FOLDER.parent / "megatron_small"


def randomize(model):
    """Changes every tensor from its default, so that a test notices a tensor that was not loaded."""
    generator = torch.Generator().manual_seed(22)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if name.endswith("ln.weight") else 0.15 * noise)


def make_model():
    model = MegatronBertForQuestionAnswering(MegatronBertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0))
    randomize(model)
    return model.eval()


def make_record(model):
    inputs, labels, _ = record_bert.make_batch()
    output = model(**inputs, **labels)
    output.loss.backward()
    return {
        **record_bert.prefixed("inputs", inputs), **record_bert.prefixed("labels", labels),
        **{name: tensor.detach().clone() for name, tensor in record_bert.results(output).items()},
        **record_bert.prefixed("grad", {name: p.grad for name, p in model.named_parameters()}),
    }


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter
                            ).parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = make_model()
    record = make_record(model)
    FOLDER.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(FOLDER)
    save_file(record, FOLDER / "record.safetensors")
    print(f"loss {record['loss'].item():.6f}  -> {FOLDER}")


if __name__ == "__main__":
    main()
