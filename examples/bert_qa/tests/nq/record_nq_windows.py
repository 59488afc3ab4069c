"""Records the windows of the baseline of Natural Questions: examples/bert_qa/tests/records/nq_windows.json.

It runs run_nq.py of google-research/language (language/question_answering/bert_joint) on the records of nq_eval and
on the first records of data/nq-dev.jsonl.gz. TensorFlow is replaced by stubs, and BERT's tokenizer by PyPI's tokenizers,
which is the norm of the example. The vocabulary has the baseline's tokens in place of its [unused] tokens.

usage: record_nq_windows.py RUN_NQ.py NQ_VOCAB.txt
NQ_VOCAB.txt is the vocab.txt that `bert_qa init --task nq` writes for the shipped vocabulary.
"""
import collections
import gzip
import itertools
import json
import pathlib
import sys
import types

from tokenizers import BertWordPieceTokenizer

EXAMPLE = pathlib.Path(__file__).resolve().parents[2]
RECORDS = EXAMPLE / "tests" / "records"
MASK = 0xFFFFFFFFFFFFFFFF
SETTINGS = [{"max_seq_length": 512, "doc_stride": 128, "max_query_length": 64},
            {"max_seq_length": 96, "doc_stride": 32, "max_query_length": 8}]
MADE = 60  # records of data/nq-dev.jsonl.gz


class Tokenizer:
    def __init__(self, vocab_file):
        tokens = pathlib.Path(vocab_file).read_text(encoding="utf-8").splitlines()
        self.vocab = {token: number for number, token in enumerate(tokens)}
        self.wordpiece_tokenizer = types.SimpleNamespace(unk_token="[UNK]")
        self.pieces = BertWordPieceTokenizer(vocab_file, lowercase=True)

    def tokenize(self, text):
        return self.pieces.encode(text, add_special_tokens=False).tokens

    def convert_tokens_to_ids(self, tokens):
        return [self.vocab[token] for token in tokens]


def load_run_nq(path):
    flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace())
    for kind in ("string", "integer", "bool", "boolean", "float"):
        setattr(flags, f"DEFINE_{kind}", lambda name, value, text: setattr(flags.FLAGS, name, value))
    logging = types.SimpleNamespace(warning=lambda *words: None, info=lambda *words: None)
    stubs = {name: types.ModuleType(name) for name in
             ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "tensorflow.contrib", "bert")}
    tf = stubs["tensorflow.compat.v1"]
    tf.flags, tf.logging, tf.estimator = flags, logging, None
    stubs["tensorflow"].compat, stubs["tensorflow.compat"].v1 = stubs["tensorflow.compat"], tf
    stubs["tensorflow.contrib"].cluster_resolver = stubs["tensorflow.contrib"].tpu = None
    stubs["bert"].modeling = stubs["bert"].optimization = None
    stubs["bert"].tokenization = types.SimpleNamespace(whitespace_tokenize=lambda text: text.split())
    sys.modules.update(stubs)
    module = types.ModuleType("run_nq")
    module.xrange = range  # the script is for Python 2
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), module.__dict__)
    return module


def lines():
    yield from (RECORDS / "nq_eval" / "gold.jsonl").read_text().splitlines()
    with gzip.open(EXAMPLE / "data" / "nq-dev.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, MADE):
            record = json.loads(line)
            record["document_tokens"] = [{"token": token, "html_token": token.startswith("<") and token.endswith(">")}
                                         for token in record.pop("document_text").split(" ")]
            yield json.dumps(record)


def has_nested_answer(record):
    """The baseline labels other words for these records, so the example differs on purpose."""
    return any(each["long_answer"]["candidate_index"] >= 0 and
               not record["long_answer_candidates"][each["long_answer"]["candidate_index"]]["top_level"]
               for each in record["annotations"])


def fnv(hash_, values):
    for value in values:
        hash_ = ((hash_ ^ (value & 0xFFFFFFFF)) * 0x100000001B3) & MASK
    return hash_


def windows_of(run_nq, line, tokenizer):
    entry = run_nq.create_example_from_jsonl(line)
    found = []
    for training in (True, False):
        run_nq.FLAGS.include_unknowns = 1.0  # keeps all windows
        examples = run_nq.read_nq_entry(entry, training)
        features = [] if not examples else run_nq.convert_single_example(examples[0], tokenizer, training)
        for index, feature in enumerate(features):
            length = sum(feature.input_mask)
            if training:
                found.append([length, feature.start_position, feature.end_position, int(feature.answer_type),
                              fnv(fnv(0xCBF29CE484222325, feature.input_ids[:length]), feature.segment_ids[:length])])
            else:
                words = [feature.token_to_orig_map.get(i, -1) for i in range(length)]
                found[index].append(fnv(0xCBF29CE484222325, words))
    return found


def main():
    run_nq, tokenizer = load_run_nq(sys.argv[1]), Tokenizer(sys.argv[2])
    recorded = []
    for settings in SETTINGS:
        for name, value in settings.items():
            setattr(run_nq.FLAGS, name, value)
        rows = [{"nested": True} if has_nested_answer(json.loads(line)) else
                {"windows": windows_of(run_nq, line, tokenizer)} for line in lines()]
        counts = collections.Counter(window[3] for row in rows for window in row.get("windows", []))
        print(settings, "windows by type:", dict(sorted(counts.items())))
        recorded.append({"settings": settings, "records": rows})
    (RECORDS / "nq_windows.json").write_text(json.dumps(recorded, separators=(",", ":")).replace("{\"", "\n{\"") + "\n")


if __name__ == "__main__":
    main()
