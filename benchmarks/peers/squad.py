"""Implements SQuAD v1.1 like transformers' run_qa.py: windows, answer decoding, exact match and F1."""

import collections
import json
import re
import string

import numpy as np

N_BEST = 20
MAX_ANSWER_LENGTH = 30


def read_questions(path):
    """Returns the rows {id, question, context, answers} of a nested SQuAD file, in file order."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    rows.append({"id": qa["id"], "question": qa["question"].lstrip(),
                                 "context": paragraph["context"], "answers": qa["answers"]})
    return rows


def label_window(window, answer):
    """Returns the first and last token of the answer, or (0, 0) if the window does not hold the whole answer."""
    context = [i for i, s in enumerate(window["sequence_ids"]) if s == 1]
    offsets = window["offsets"]
    begin = answer["answer_start"]
    end = begin + len(answer["text"])
    first, last = context[0], context[-1]
    if not (offsets[first][0] <= begin and offsets[last][1] >= end):
        return 0, 0
    while first < len(offsets) and offsets[first][0] <= begin:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


def make_windows(tokenizer, rows, max_seq_length=384, doc_stride=128):
    """Returns all windows of all rows: {row, input_ids, token_type_ids, offsets, sequence_ids, start, end}."""
    windows = []
    for index, row in enumerate(rows):
        encoded = tokenizer(row["question"], row["context"], truncation="only_second",
                            max_length=max_seq_length, stride=doc_stride,
                            return_overflowing_tokens=True, return_offsets_mapping=True)
        for i, ids in enumerate(encoded["input_ids"]):
            window = {"row": index, "input_ids": ids, "token_type_ids": encoded["token_type_ids"][i],
                      "offsets": encoded["offset_mapping"][i],
                      "sequence_ids": encoded.sequence_ids(i)}
            window["start"], window["end"] = label_window(window, row["answers"][0])
            windows.append(window)
    return windows


def candidates(row, windows, logits):
    """Returns the n best answers of one question: [{text, probability, start_logit, end_logit}]."""
    found = []
    for window, (start_logits, end_logits) in zip(windows, logits):
        offsets = [o if s == 1 else None
                   for o, s in zip(window["offsets"], window["sequence_ids"])]
        starts = np.argsort(start_logits)[-1:-N_BEST - 1:-1].tolist()
        ends = np.argsort(end_logits)[-1:-N_BEST - 1:-1].tolist()
        for start in starts:
            for end in ends:
                if offsets[start] is None or offsets[end] is None:
                    continue
                if end < start or end - start + 1 > MAX_ANSWER_LENGTH:
                    continue
                found.append({"offsets": (offsets[start][0], offsets[end][1]),
                              "score": start_logits[start] + end_logits[end],
                              "start_logit": float(start_logits[start]),
                              "end_logit": float(end_logits[end])})
    best = sorted(found, key=lambda c: c["score"], reverse=True)[:N_BEST]
    for candidate in best:
        begin, end = candidate.pop("offsets")
        candidate["text"] = row["context"][begin:end]
    scores = np.array([c.pop("score") for c in best])
    weights = np.exp(scores - scores.max()) if len(best) else scores
    for candidate, weight in zip(best, weights):
        candidate["probability"] = float(weight / weights.sum())
    return best


def decode(rows, windows, logits):
    """Returns predictions {id: text} and n-best lists {id: [candidate]}; logits[i] belongs to windows[i]."""
    of_row = collections.defaultdict(list)
    for position, window in enumerate(windows):
        of_row[window["row"]].append(position)
    predictions, n_best = {}, {}
    for index, row in enumerate(rows):
        positions = of_row[index]
        best = candidates(row, [windows[p] for p in positions], [logits[p] for p in positions])
        n_best[row["id"]] = best
        predictions[row["id"]] = best[0]["text"] if best else ""
    return predictions, n_best


def normalized(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1_score(prediction, answer):
    ours, gold = normalized(prediction).split(), normalized(answer).split()
    same = sum((collections.Counter(ours) & collections.Counter(gold)).values())
    return 2 * same / (len(ours) + len(gold)) if same else 0.0


def evaluate(rows, predictions):
    """Returns {exact_match, f1} in percent."""
    exact = f1 = 0.0
    for row in rows:
        answers = [a["text"] for a in row["answers"]]
        text = predictions[row["id"]]
        exact += max(float(normalized(text) == normalized(a)) for a in answers)
        f1 += max(f1_score(text, a) for a in answers)
    return {"exact_match": 100 * exact / len(rows), "f1": 100 * f1 / len(rows)}
