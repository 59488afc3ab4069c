"""Checks a folder that `bert_qa finetune` has written, with Python transformers.

Loads it (no key may be missing or unexpected), answers the questions of --validation-file, and
compares with the folder's own predictions.json and nbest_predictions.json: answers equal, logits of
the n best within --tolerance of the question's largest logit. Exit code 0 if all of that holds.
transformers computes in float64. Small logits are sums of large terms, so in fp32 they are off by up to
2e-5 in both programs. So the tolerance is relative to the question's largest logit.
"""

import argparse
import json
import pathlib
import sys

from transformers import AutoTokenizer, BertForQuestionAnswering
from transformers.utils import logging

import reference_run
import squad


def check_keys(loading):
    ok = True
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = sorted(map(str, loading[kind]))
        print(f"{kind}: {len(keys)}" + "".join(f"\n  {key}" for key in keys))
        ok &= not keys
    return ok


def check_predictions(predictions, theirs):
    different = [key for key in predictions if predictions[key] != theirs.get(key)]
    print(f"answers: {len(predictions)} compared, {len(different)} different")
    for key in different[:5]:
        print(f"  {key}: transformers {predictions[key]!r}, folder {theirs.get(key)!r}")
    return not different and len(theirs) == len(predictions)


def largest_logit(candidates):
    return max(abs(each[name]) for each in candidates for name in ("start_logit", "end_logit"))


def check_logits(n_best, theirs, tolerance):
    """Compares the candidates of the same rank. Candidates with equal scores may be in any order."""
    largest, where = 0.0, ""
    for key, candidates in n_best.items():
        if len(candidates) != len(theirs[key]):
            print(f"n-best: {key} has {len(theirs[key])} candidates, expected {len(candidates)}")
            return False
        scale = max(1.0, largest_logit(candidates))
        for ours, other in zip(candidates, theirs[key]):
            score = abs(ours["start_logit"] + ours["end_logit"]
                        - other["start_logit"] - other["end_logit"])
            parts = max(abs(ours[name] - other[name]) for name in ("start_logit", "end_logit"))
            difference = (parts if ours["text"] == other["text"] else score) / scale
            if difference > largest:
                largest, where = difference, key
    count = sum(map(len, n_best.values()))
    print(f"logits: {count} candidates compared, largest difference {largest:.3g} {where}")
    return largest <= tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--validation-file",
                        default=reference_run.ROOT / "examples/bert_qa/data/xquad-en-dev.json")
    parser.add_argument("--max-eval-samples", type=int, help="questions, from the start")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    model, loading = BertForQuestionAnswering.from_pretrained(arguments.folder,
                                                              output_loading_info=True)
    model.double()
    ok = check_keys(loading)
    rows = squad.read_questions(arguments.validation_file)[:arguments.max_eval_samples]
    windows = squad.make_windows(AutoTokenizer.from_pretrained(arguments.folder), rows)
    logits = reference_run.predict(model, windows, arguments.batch_size)
    predictions, n_best = squad.decode(rows, windows, logits)
    scores = squad.evaluate(rows, predictions)
    print(f"exact match {scores['exact_match']:.2f}  F1 {scores['f1']:.2f}")

    def written(name):
        return json.loads((arguments.folder / name).read_text(encoding="utf-8"))

    ok &= check_predictions(predictions, written("predictions.json"))
    ok &= check_logits(n_best, written("nbest_predictions.json"), arguments.tolerance)
    print("export: " + ("agrees" if ok else "DIFFERS"))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
