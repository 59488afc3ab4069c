"""Records the figures of PyPI's natural-questions for 30 hand-made records: examples/bert_qa/tests/records/nq_eval.

Run it with a Python that has natural-questions and absl-py. gold.jsonl has the records in the original format.
figures.json has sets of predictions, each with the figures of nq_eval for several thresholds.

usage: record_nq_eval.py
"""
import gzip
import json
import os
import pathlib
import tempfile

from absl import flags
from natural_questions import eval_utils, nq_eval

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "records" / "nq_eval"

PAGE = """<H1> Ada Lovelace </H1> <P> Ada was born in London in 1815 . </P>
<Ul> <Li> mathematician </Li> <Li> writer </Li> </Ul>
<Table> <Tr> <Th> Note G </Th> <Td> 1843 </Td> </Tr> </Table>
<P> She wrote the first program for a machine . </P> <Dl> <Dd> poet </Dd> </Dl> <P> </P>""".split()
# Start and end of each candidate, in tokens. The second <Li> and the <Tr> are inside others.
CANDIDATES = [(4, 14, True), (14, 22, True), (18, 21, False), (22, 33, True), (23, 32, False), (33, 44, True),
              (44, 49, True), (49, 51, True)]


def byte_of(token):
    return sum(len(each) + 1 for each in PAGE[:token])


def span(start, end, by="both"):
    has_bytes, has_tokens = by in ("both", "bytes"), by in ("both", "tokens")
    return {"start_byte": byte_of(start) if has_bytes else -1,
            "end_byte": byte_of(end) - 1 if has_bytes else -1,
            "start_token": start if has_tokens else -1, "end_token": end if has_tokens else -1}


NULL = {"start_byte": -1, "end_byte": -1, "start_token": -1, "end_token": -1}


def ann(candidate=None, *short, yes_no="NONE"):
    """An annotation: the index of the long answer, and the short answers' tokens."""
    if candidate is None:
        return {"long_answer": {**NULL, "candidate_index": -1}, "short_answers": [], "yes_no_answer": yes_no}
    start, end, _ = CANDIDATES[candidate]
    return {"long_answer": {**span(start, end), "candidate_index": candidate},
            "short_answers": [span(*part) for part in short], "yes_no_answer": yes_no}


def pred(score, candidate=None, *short, yes_no="NONE", short_score=None, by="tokens"):
    """A prediction with spans in tokens, bytes or both."""
    return {"long_answer": NULL if candidate is None else span(*CANDIDATES[candidate][:2], by),
            "long_answer_score": score, "short_answers": [span(*part, by) for part in short],
            "short_answers_score": score if short_score is None else short_score, "yes_no_answer": yes_no}


NONE = ann()
BORN, WHERE, WHEN = (5, 8), (9, 10), (11, 12)
# Question, annotations, prediction.
ROWS = [
    # Five annotators.
    ("where was ada born", [ann(0, WHERE)] * 5, pred(9.5, 0, WHERE)),
    ("when was ada born", [ann(0, WHEN), ann(0, WHEN), ann(0, BORN), ann(0), NONE], pred(8.25, 0, BORN)),
    ("what was ada", [ann(1, (16, 17), (19, 20)), ann(1, (16, 17)), ann(1), NONE, NONE],
     pred(8.25, 1, (19, 20), (16, 17))),
    ("which note is known", [ann(3, (25, 27)), ann(4, (25, 27)), ann(4), NONE, NONE], pred(7, 4, (25, 27))),
    ("did ada write a program", [ann(5, yes_no="YES")] * 3 + [NONE, ann(5, (37, 39))], pred(6.5, 5, yes_no="YES")),
    ("was ada born in paris", [ann(0, yes_no="NO"), ann(0, yes_no="NO"), ann(0, yes_no="YES"), NONE, NONE],
     pred(6, 0, yes_no="YES")),
    ("was the machine built", [ann(5, yes_no="NO"), ann(5, yes_no="NO"), NONE, NONE, NONE], pred(5.5, 5, (37, 39))),
    ("who built the machine", [NONE] * 5, pred(5.25, 5, (41, 42))),
    ("who programmed first", [ann(5, (34, 35)), NONE, NONE, NONE, NONE], pred(5, 5, (34, 35))),
    ("what did she write", [ann(5, (37, 39)), ann(5), NONE, NONE, NONE], pred(4.75, 5, (37, 39))),
    ("what is note g", [ann(3), ann(3), ann(3), ann(3), NONE], pred(4.5, 3)),
    ("describe ada", [ann(0), ann(1), ann(5), NONE, NONE], pred(4.25, 5)),
    ("who was her father", [ann(6, (46, 47)), ann(6, (46, 47)), NONE, NONE, NONE], pred(4, None, (46, 47))),
    ("what is her birth year", [ann(0, WHEN)] * 5, pred(3.75)),
    ("when was note g written", [ann(3, (29, 30)), ann(4, (29, 30)), ann(3, (29, 30)), ann(4), NONE],
     pred(3.75, 3, (28, 30))),
    ("what is a poet", [ann(6), ann(6), NONE, NONE, NONE], pred(3.5, 6, (46, 47), by="bytes")),
    ("which two jobs had ada", [ann(1, (16, 17), (19, 20))] * 2 + [ann(1, (19, 20), (16, 17)), NONE, NONE],
     pred(3.25, 1, (16, 17))),
    ("was ada a writer", [ann(2, yes_no="YES"), ann(1, yes_no="YES"), ann(1, (19, 20)), NONE, NONE],
     pred(3, 2, yes_no="YES", short_score=-2)),
    # Four annotators.
    ("in which city was she born", [ann(0, WHERE), ann(0, WHERE), NONE, NONE], pred(3, 0, WHERE, by="both")),
    ("where did she die", [NONE, NONE, NONE, ann(0, WHERE)], pred(2.75, 0, WHERE)),
    ("who was ada lovelace", [ann(0), ann(5), ann(1), ann(1)], pred(2.5, 1)),
    # Three annotators.
    ("what did ada program", [ann(5, (39, 42)), ann(5, (39, 42)), ann(5, (40, 42))], pred(2.25, 5, (40, 42), by="bytes")),
    ("is ada a poet", [ann(6, yes_no="YES"), ann(6, yes_no="NO"), NONE], pred(2, 6, yes_no="NO", short_score=12)),
    ("when did she write", [ann(3, (29, 30)), NONE, NONE], pred(1.5, 3, (29, 30))),
    # Two annotators.
    ("what is 1815", [ann(0, WHEN), ann(0, BORN)], pred(1.5, 0, WHEN)),
    ("what is 1843", [ann(3, (29, 30)), NONE], pred(1.5, 3, (29, 30))),
    ("who is she", [NONE, NONE], pred(0, 0, BORN, short_score=1)),
    # One annotator.
    ("where is london", [ann(0, WHERE)], pred(-0.5, 0, WHERE)),
    ("does she write", [ann(5, yes_no="YES")], pred(-1, 5, yes_no="YES")),
    ("what is a machine", [NONE], pred(-1)),
]
assert len(ROWS) == 30


def records():
    tokens = [{"token": token, "start_byte": byte_of(i), "end_byte": byte_of(i) + len(token),
               "html_token": token.startswith("<")} for i, token in enumerate(PAGE)]
    candidates = [{**span(start, end), "top_level": top} for start, end, top in CANDIDATES]
    for number, (question, annotations, _) in enumerate(ROWS):
        # Ids of Natural Questions are 64-bit integers, half of them negative.
        yield {"example_id": (-1) ** number * (4_000_000_000_000_000_000 + number), "question_text": question,
               "document_title": "Ada", "document_tokens": tokens,
               "long_answer_candidates": candidates, "annotations": annotations}


def prediction_sets():
    """The rows' predictions; the same with reversed scores; with equal scores; no answers."""
    own = [dict(row[2]) for row in ROWS]
    yield "own", own
    yield "reversed", [{**each, "long_answer_score": -each["long_answer_score"],
                        "short_answers_score": -each["short_answers_score"]} for each in own]
    yield "equal", [{**each, "long_answer_score": 1.0, "short_answers_score": 1.0} for each in own]
    yield "none", [pred(i / 8) for i in range(len(ROWS))]


def figures(gold, predictions, thresholds):
    flags.FLAGS.long_non_null_threshold, flags.FLAGS.short_non_null_threshold = thresholds
    stats = nq_eval.score_answers(eval_utils.read_annotation_from_one_split(gold),
                                  eval_utils.read_prediction_json(predictions))
    values = dict(nq_eval.get_metrics_with_answer_stats(*stats))
    values.update({key: value for key, value in nq_eval.compute_final_f1(*stats).items() if key[-2:] != "-n"})
    for kind, of_kind in zip(("long", "short"), stats):
        for target, _, _, threshold in nq_eval.compute_pr_curves(of_kind, targets=[0.5, 0.75, 0.9])[1]:
            values[f"{kind}-threshold-at-precision>={target:.2}"] = threshold
    return values


def main():
    flags.FLAGS(["record_nq_eval"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    gold = [json.dumps(record) + "\n" for record in records()]
    (FOLDER / "gold.jsonl").write_text("".join(gold))
    ids = [json.loads(line)["example_id"] for line in gold]
    sets = []
    with tempfile.TemporaryDirectory() as place:
        zipped, file = os.path.join(place, "gold.jsonl.gz"), os.path.join(place, "predictions.json")
        with gzip.open(zipped, "wt") as out:
            out.writelines(gold)
        for name, predictions in prediction_sets():
            predictions = [{"example_id": id_, **each} for id_, each in zip(ids, predictions)]
            pathlib.Path(file).write_text(json.dumps({"predictions": predictions}))
            results = [{"thresholds": pair, "figures": figures(zipped, file, pair)}
                       for pair in [(2, 2), (1, 1), (3, 2), (1, 5)]]
            sets.append({"name": name, "predictions": predictions, "results": results})
    (FOLDER / "figures.json").write_text(json.dumps(sets, indent=1) + "\n")
    for each in sets:
        for result in each["results"]:
            values = result["figures"]
            print(each["name"], *result["thresholds"],
                  *(round(values[f"{kind}-best-threshold-f1"], 4) for kind in ("long", "short")))


if __name__ == "__main__":
    main()
