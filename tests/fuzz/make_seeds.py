"""usage: make_seeds.py FOLDER

Writes seed inputs for the fuzz targets to FOLDER/TARGET. They are parts of files of this repository. They are
small, so that a mutation is likely to change an important byte.
"""
import hmac
import json
import pathlib
import struct
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
IO_RECORDS = ROOT / "tests/io/records"
RECORDS = ROOT / "examples/bert_qa/tests/records"
DATA = ROOT / "examples/bert_qa/data"


def header_alone(path, tensors=6):
    """Returns the first tensors of a safetensors file, with zero data and dimensions of at most 2."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    widths = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1}
    small, at = {}, 0
    for name, tensor in list(header.items())[:tensors]:
        if name == "__metadata__":
            small[name] = tensor
        elif tensor["dtype"] in widths:
            shape = [min(dimension, 2) for dimension in tensor["shape"]]
            nbytes = widths[tensor["dtype"]]
            for dimension in shape:
                nbytes *= dimension
            small[name] = {"dtype": tensor["dtype"], "shape": shape, "data_offsets": [at, at + nbytes]}
            at += nbytes
    text = json.dumps(small).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def safetensors():
    yield (DATA / "qa-head-minilm.safetensors").read_bytes()
    yield (IO_RECORDS / "safetensors_peer.safetensors").read_bytes()
    for model in ("bert_small", "megatron_small"):
        yield header_alone(RECORDS / model / "model.safetensors")


def header():
    def entry(shape, begin, end):
        return {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}

    two = {"a": entry([4], 0, 4), "b": entry([4], 4, 8)}
    three = {"a": entry([2, 2], 0, 4), "z": entry([0], 4, 4), "b": entry([3], 4, 7)}
    for tensors in (two, three):
        text = json.dumps(tensors, separators=(",", ":")).encode()
        yield struct.pack("<H", max(tensor["data_offsets"][1] for tensor in tensors.values())) + text
    for raw in list(safetensors())[1:]:
        (size,) = struct.unpack("<Q", raw[:8])
        yield struct.pack("<H", len(raw) - 8 - size) + raw[8:8 + size]


def index():
    names = [f"bert.encoder.layer.{i}.attention.self.query.weight" for i in range(4)]
    files = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(names)}
    yield json.dumps({"metadata": {"total_size": 96}, "weight_map": files}, indent=2).encode()
    yield json.dumps({"weight_map": files}).encode()


def pickle():
    for path in sorted((ROOT / "tests/checkpoint/records").glob("*.pt")):
        if path.name == "legacy.pt":
            yield path.read_bytes()[:1000]
            continue
        if path.name == "unchecked.pt":  # Python requires its check sums
            continue
        with zipfile.ZipFile(path) as archive:
            yield archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


def archive():
    """Yields archives without padding and without check sums, so that a changed record is still read."""
    for path in sorted((ROOT / "tests/checkpoint/records").glob("*.pt")):
        if path.name in ("legacy.pt", "unchecked.pt"):
            continue
        with zipfile.ZipFile(path) as archive:
            records = [(name, archive.read(name)) for name in archive.namelist() if "/code/" not in name]
        file, directory = b"", b""
        for name, data in records:
            fields = (0, 0, 0, 0, 0, 0, len(data), len(data), len(name))
            directory += b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", 0, *fields, 0, 0, 0, 0, 0, len(file))
            directory += name.encode()
            file += b"PK\3\4" + struct.pack("<HHHHHIIIHH", *fields, 0) + name.encode() + data
        end = struct.pack("<HHHHIIH", 0, 0, len(records), len(records), len(directory), len(file), 0)
        yield file + directory + b"PK\5\6" + end


def manifest():
    """Yields manifests without their hash, a NUL, and four bytes for each interval."""
    hash_text = "0123456789abcdef" * 2

    def tensor(name, shape, strides, granule=1, other_names=()):
        return {"name": name, "other_names": list(other_names), "dtype": "F32", "shape": [str(n) for n in shape],
                "strides": [str(n) for n in strides], "granule": str(granule)}

    def file(name, nbytes):
        return {"name": name, "bytes": str(nbytes), "sum": hash_text}

    full = {"version": 1, "run": hash_text, "sequence": "7", "step": "1200", "resumed_from": "1000",
            "time": "2026-11-26T23:20:00Z", "finite": True, "world_size": "2",
            "conditions": {"strategy": "full-shard"},
            "objects": [{"name": "optimizer", "kind": "AdamW",
                         "values": {"lr": {"real": "0x1.8p+1"}, "step": {"integer": "3"},
                                    "worst": {"real": "-inf"}, "odd": {"real": "nan(7ff8000000000000)"},
                                    "note": {"text": "é"}}}],
            "tensors": [tensor("a", (4, 6), (1, 4), 4, ("tied",)), tensor("e", (0, 3), (3, 1)), tensor("s", (), ())],
            "files": [file("shard-00000-of-00002.safetensors", 4200), file("shard-00001-of-00002.safetensors", 4100),
                      file("intervals.safetensors", 200)]}
    empty = {**full, "conditions": {}, "objects": [], "tensors": [], "resumed_from": "-1", "finite": False}
    for value, rows in ((full, bytes([0, 0, 0, 8, 0, 1, 8, 16, 2, 0, 0, 1])), (empty, b"")):
        text = json.dumps(value, indent=None, ensure_ascii=False)
        yield (text[:-1] + ",\n").encode() + b"\0" + rows


def config():
    for model in ("bert_small", "megatron_small"):
        yield (RECORDS / model / "config.json").read_bytes()


def paragraphs():
    for article in json.loads((DATA / "xquad-en-dev.json").read_text("utf-8"))["data"][:6]:
        yield article["paragraphs"][0]


def squad():
    for paragraph in paragraphs():
        context, qas = paragraph["context"][:300], []
        for qa in paragraph["qas"]:
            qas.append({**qa, "answers": [answer for answer in qa["answers"]
                                          if answer["answer_start"] + len(answer["text"]) <= 300]})
        nested = {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas[:2]}]}]}
        yield json.dumps(nested, ensure_ascii=False).encode()
        rows = [{"id": qa["id"], "context": context, "question": qa["question"],
                 "answers": {"text": [answer["text"] for answer in qa["answers"]],
                             "answer_start": [answer["answer_start"] for answer in qa["answers"]]}}
                for qa in qas[:2]]
        yield "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def vocabulary():
    lines = (DATA / "bert-base-uncased-vocab.txt").read_text("utf-8").splitlines()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for first in (1000, 2000, 5000, 29000):
        yield "\n".join([*special, *lines[first:first + 60]]).encode() + b"\n"


def tokenizer_json():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for lower, strip in ((True, None), (False, True)):
        yield json.dumps({
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(special)],
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": strip, "lowercase": lower},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "decoder": None,
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100,
                      "vocab": {token: i for i, token in enumerate([*special, "a", "##b", "é"])}},
        }, ensure_ascii=False).encode()


def tokenizer():
    texts = [paragraph["context"][:200] for paragraph in paragraphs()]
    texts += [paragraph["qas"][0]["question"] for paragraph in paragraphs()]
    texts += ["ÀÉÎõü naïve café x[MASK]é [SEP]", "北京 is 中国's capital", "\u0301a\u302e\u0327 가각",
              "x" * 120 + "é\u200d", "\U0001d15e\U0001f600\u0344"]
    for choice, text in enumerate(texts):
        yield bytes([choice % 4]) + text.encode()


def store():
    """Yields requests to the ranks' store: a header, the lengths of the texts, and the texts."""
    def request(kind, texts, number=0):
        return (struct.pack("<IIQq", kind, len(texts), sum(map(len, texts)), number) +
                struct.pack(f"<{len(texts)}I", *map(len, texts)) + b"".join(texts))

    a, b, n = b"a", b"b", b"n"
    yield request(1, [a, b"1"]) + request(2, [a, b"2"]) + request(6, [a]) + request(4, [a, b])
    yield request(3, [n], 5) + request(3, [n], -7) + request(6, [n, n]) + request(7, [n]) + request(6, [n])
    yield request(5, [a, b], 9) + request(5, [b], 5) + request(1, [b, b""]) + request(1, [a, b""])
    yield request(5, [a, b], 9) + request(1, [a, b""]) + request(7, [a]) + request(1, [b, b""]) + request(3, [a], 1)
    yield request(1, [b"ab", b"1"]) + request(1, [b, b"2"]) + request(8, [a]) + request(4, [b"ab", b])


def stranger():
    """Yields hellos to the ranks' store: one with a wrong hash, and one with the hash of the fuzz target's key."""
    yield b"fsdpsto2" + bytes(64)
    proof = hmac.new(b"k" * 32, b"fsdp store hello" + bytes(64), "sha256").digest()
    yield b"fsdpsto2" + bytes(32) + proof + bytes(32)


def main():
    makers = {"safetensors": safetensors, "header": header, "index": index, "config": config,
              "json": lambda: [*index(), *config(), *squad()], "pickle": pickle, "archive": archive, "manifest": manifest,
              "squad": squad, "vocabulary": vocabulary,
              "tokenizer_json": tokenizer_json, "tokenizer": tokenizer, "store": store, "stranger": stranger}
    for target, make in makers.items():
        folder = pathlib.Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(make()):
            (folder / f"shipped-{number}").write_bytes(seed)


if __name__ == "__main__":
    main()
