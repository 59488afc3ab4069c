"""Records windows, decoded answers and scores of the shipped questions: examples/bert_qa/tests/records/qa.json.

The functions are those of Hugging Face's question-answering example and of the SQuAD v1.1 and v2.0
scripts, rewritten in plain Python. From the example (run_qa.py, utils_qa.py) come windows, labels and
postprocess_qa_predictions. `tokenizers` makes the windows. There is one difference: the search for an
answer's first token ends at the window's last context token, while the example continues. Logits are a
hash of window, token and side, with a higher value at the label. So every program can compute them.

usage: record_qa.py FILE
"""
import collections
import json
import os
import re
import string
import sys

import numpy as np
from tokenizers import BertWordPieceTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")
MASK = 0xFFFFFFFFFFFFFFFF
SETTINGS = [(384, 128), (128, 32), (64, 20)]


def read_questions(name, version_2):
    rows = []
    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    # In the v2.0 data every third question has no answer.
                    answers = [] if version_2 and len(rows) % 3 == 2 else qa["answers"]
                    rows.append({"id": qa["id"], "question": qa["question"].lstrip(),
                                 "context": paragraph["context"], "answers": answers})
    return rows


def label_window(offsets, context, answers):
    if not answers:
        return 0, 0
    begin = answers[0]["answer_start"]
    end = begin + len(answers[0]["text"])
    first, last = context[0], context[-1]
    if not (offsets[first][0] <= begin and offsets[last][1] >= end):
        return 0, 0
    while first <= context[-1] and offsets[first][0] <= begin:
        first += 1
    while last >= context[0] and offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


def make_windows(rows, max_seq_length, doc_stride):
    tokenizer = BertWordPieceTokenizer(os.path.join(DATA, "bert-base-uncased-vocab.txt"),
                                       lowercase=True)
    tokenizer.enable_truncation(max_seq_length, stride=doc_stride, strategy="only_second")
    windows = []
    for row, example in enumerate(rows):
        encoding = tokenizer.encode(example["question"], example["context"])
        for part in [encoding, *encoding.overflowing]:
            context = [i for i, s in enumerate(part.sequence_ids) if s == 1]
            start, end = label_window(part.offsets, context, example["answers"])
            windows.append({"row": row, "ids": part.ids, "types": part.type_ids, "start": start,
                            "end": end,
                            "offsets": [o if s == 1 else None
                                        for o, s in zip(part.offsets, part.sequence_ids)]})
    return windows


def fnv(hash_, value):
    return ((hash_ ^ (value & 0xFFFFFFFF)) * 0x100000001B3) & MASK


def hash_window(hash_, window):
    for id_, type_, offset in zip(window["ids"], window["types"], window["offsets"]):
        begin, end = offset if offset else (0xFFFFFFFF, 0xFFFFFFFF)
        for value in (id_, type_, begin, end):
            hash_ = fnv(hash_, value)
    return fnv(fnv(hash_, window["start"]), window["end"])


def splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def logit(window, token, side):
    return np.float32((splitmix((window * 1024 + token) * 2 + side) >> 40) / 2**20 - 8)


def make_logits(windows):
    """Returns one array of [start, end] for each window. In two of three windows the label has a higher value."""
    result = []
    for w, window in enumerate(windows):
        logits = np.array([[logit(w, t, s) for t in range(len(window["ids"]))] for s in (0, 1)],
                          dtype=np.float32)
        if w % 3 != 0:
            logits[0, window["start"]] += np.float32(12)
            logits[1, window["end"]] += np.float32(12)
        result.append(logits)
    return result


def postprocess(rows, windows, logits, version_2, n_best_size=20, max_answer_length=30,
                null_score_diff_threshold=0.0):
    of_row = collections.defaultdict(list)
    for w, window in enumerate(windows):
        of_row[window["row"]].append(w)
    predictions, nbest, null_odds = {}, {}, {}
    for r, row in enumerate(rows):
        min_null, prelim = None, []
        for w in of_row[r]:
            start_logits, end_logits = logits[w]
            offsets = windows[w]["offsets"]
            null_score = start_logits[0] + end_logits[0]
            if min_null is None or min_null["score"] > null_score:
                min_null = {"offsets": (0, 0), "score": null_score,
                            "start_logit": start_logits[0], "end_logit": end_logits[0]}
            starts = np.argsort(start_logits, kind="stable")[-1:-n_best_size - 1:-1].tolist()
            ends = np.argsort(end_logits, kind="stable")[-1:-n_best_size - 1:-1].tolist()
            for start in starts:
                for end in ends:
                    if offsets[start] is None or offsets[end] is None:
                        continue
                    if end < start or end - start + 1 > max_answer_length:
                        continue
                    prelim.append({"offsets": (offsets[start][0], offsets[end][1]),
                                   "score": start_logits[start] + end_logits[end],
                                   "start_logit": start_logits[start],
                                   "end_logit": end_logits[end]})
        if version_2:
            prelim.append(min_null)
            null_score = min_null["score"]
        best = sorted(prelim, key=lambda p: p["score"], reverse=True)[:n_best_size]
        if version_2 and not any(p["offsets"] == (0, 0) for p in best):
            best.append(min_null)
        for p in best:
            begin, end = p.pop("offsets")
            p["text"] = row["context"][begin:end]
        if not best or (len(best) == 1 and best[0]["text"] == ""):
            best.insert(0, {"text": "empty", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0})
        scores = np.array([p.pop("score") for p in best])
        weights = np.exp(scores - np.max(scores))
        for p, probability in zip(best, weights / weights.sum()):
            p["probability"] = probability
        if version_2:
            i = 0
            while best[i]["text"] == "":
                i += 1
            diff = null_score - best[i]["start_logit"] - best[i]["end_logit"]
            null_odds[row["id"]] = float(diff)
            predictions[row["id"]] = "" if diff > null_score_diff_threshold else best[i]["text"]
        else:
            predictions[row["id"]] = best[0]["text"]
        nbest[row["id"]] = [{k: v if isinstance(v, str) else float(v) for k, v in p.items()}
                            for p in best]
    return predictions, nbest, null_odds


def normalized(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1_v1(prediction, gold):
    ours, theirs = normalized(prediction).split(), normalized(gold).split()
    same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    if same == 0:
        return 0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def f1_v2(gold, prediction):
    theirs, ours = normalized(gold).split(), normalized(prediction).split()
    if not theirs or not ours:
        return int(theirs == ours)
    return f1_v1(prediction, gold)


def score_v1(rows, predictions):
    exact = f1 = 0
    for row in rows:
        gold = [a["text"] for a in row["answers"]]
        text = predictions[row["id"]]
        exact += max(normalized(text) == normalized(g) for g in gold)
        f1 += max(f1_v1(text, g) for g in gold)
    return {"exact_match": 100 * exact / len(rows), "f1": 100 * f1 / len(rows)}


def best_threshold(rows, predictions, scores, null_odds):
    has_answer = {row["id"]: bool(row["answers"]) for row in rows}
    current = best = sum(1 for id_ in has_answer if not has_answer[id_])
    threshold = 0.0
    for id_ in sorted(null_odds, key=lambda k: null_odds[k]):
        current += scores[id_] if has_answer[id_] else (-1 if predictions[id_] else 0)
        if current > best:
            best, threshold = current, null_odds[id_]
    return 100 * best / len(scores), threshold


def score_v2(rows, predictions, null_odds):
    exact, f1 = {}, {}
    for row in rows:
        gold = [a["text"] for a in row["answers"] if normalized(a["text"])] or [""]
        text = predictions[row["id"]]
        exact[row["id"]] = max(int(normalized(g) == normalized(text)) for g in gold)
        f1[row["id"]] = max(f1_v2(g, text) for g in gold)
    result = {}
    for prefix, ids in [("", [r["id"] for r in rows]),
                        ("HasAns_", [r["id"] for r in rows if r["answers"]]),
                        ("NoAns_", [r["id"] for r in rows if not r["answers"]])]:
        result[prefix + "exact"] = 100 * sum(exact[i] for i in ids) / len(ids)
        result[prefix + "f1"] = 100 * sum(f1[i] for i in ids) / len(ids)
        result[prefix + "total"] = len(ids)
    result["best_exact"], result["best_exact_thresh"] = best_threshold(rows, predictions, exact,
                                                                       null_odds)
    result["best_f1"], result["best_f1_thresh"] = best_threshold(rows, predictions, f1, null_odds)
    return result


def record_windows():
    result = []
    for name in ["xquad-en-train.json", "xquad-en-dev.json"]:
        for max_seq_length, doc_stride in SETTINGS:
            windows = make_windows(read_questions(name, False), max_seq_length, doc_stride)
            hash_ = 0xCBF29CE484222325
            for window in windows:
                hash_ = hash_window(hash_, window)
            result.append({"file": name, "max_seq_length": max_seq_length,
                           "doc_stride": doc_stride, "windows": len(windows),
                           "hash": f"{hash_:016x}"})
    return result


def record_answers(version_2, max_seq_length, doc_stride):
    rows = read_questions("xquad-en-dev.json", version_2)
    windows = make_windows(rows, max_seq_length, doc_stride)
    predictions, nbest, null_odds = postprocess(rows, windows, make_logits(windows), version_2)
    result = {"max_seq_length": max_seq_length, "doc_stride": doc_stride,
              "predictions": predictions,
              "nbest": {id_: nbest[id_] for id_ in list(nbest)[:4]}}
    if version_2:
        result["null_odds"] = null_odds
        result["metrics"] = score_v2(rows, predictions, null_odds)
    else:
        result["metrics"] = score_v1(rows, predictions)
    return result


NORMALIZED = ["The Cat's  a-hat!", "a an the", "An apple a day, the theory", "İ ΟΔΟΣ", "a\u0301 b",
              "the\u00a0end\u3000x", "(1895-1943).", "_a_ a.b $5", "北京 the", "", " \t", "A\u2019s"]


def main():
    record = {
        "windows": record_windows(),
        "v1": record_answers(False, 128, 32),
        "v2": record_answers(True, 128, 32),
        "normalized": [[text, normalized(text)] for text in NORMALIZED],
    }
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
