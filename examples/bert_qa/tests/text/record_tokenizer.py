"""Records the tokens of Hugging Face's `tokenizers` for every Unicode scalar value and for real text.

usage: record_tokenizer.py record FILE          writes the record that the tests compare with
       record_tokenizer.py print CASE STEP      prints the hashes of every STEP-th block (live)
       record_tokenizer.py fuzz SEED COUNT      prints random texts with their tokens (live)

A case is a vocabulary, and cased or uncased. The vocabulary "bert" is the real one. The vocabulary
"chars" contains every code point of the planes that have letters, as a word start and as a
continuation, so that ids show the normalized text. A block is 256 code points. Its hash is FNV-1a over
the ids and offsets of three texts for each code point: the code point alone, between two letters, and
between a mark and a letter.
"""
import json
import os
import random
import sys
import tempfile

import tokenizers
from tokenizers import BertWordPieceTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")
CASES = ["bert-uncased", "bert-cased", "chars-uncased", "chars-cased"]
# Blocks above this one contain no letters. All of them in one plane share one hash.
LAST_BLOCK = 0x324
WHITE_SPACE = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, *range(0x2000, 0x200B)}


def char_vocab():
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for c in range(0x21, LAST_BLOCK * 256):
        if 0xD800 <= c < 0xE000 or c in WHITE_SPACE:
            continue
        lines += [chr(c), "##" + chr(c)]
    return lines


def tokenizer_of(case):
    vocab, casing = case.split("-")
    if vocab == "bert":
        return BertWordPieceTokenizer(os.path.join(DATA, "bert-base-uncased-vocab.txt"),
                                      lowercase=casing == "uncased")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vocab.txt")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write("\n".join(char_vocab()) + "\n")
        return BertWordPieceTokenizer(path, lowercase=casing == "uncased")


def fnv(hash_, value):
    return ((hash_ ^ (value & 0xFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF


def hash_tokens(hash_, encoding):
    for id_, (begin, end) in zip(encoding.ids, encoding.offsets):
        hash_ = fnv(fnv(fnv(hash_, id_), begin), end)
    return fnv(hash_, 0xFFFFFFFF)


def block_texts(block):
    for c in range(block * 256, block * 256 + 256):
        if 0xD800 <= c < 0xE000:
            continue
        yield chr(c)
        yield "a" + chr(c) + "b"
        yield "\u0301" + chr(c) + "\u0327x"


def hash_block(tokenizer, block, hash_=0xCBF29CE484222325):
    for encoding in tokenizer.encode_batch(list(block_texts(block)), add_special_tokens=False):
        hash_ = hash_tokens(hash_, encoding)
    return hash_


def hashes(case):
    """Returns one number for each block up to LAST_BLOCK, and then one for each plane."""
    tokenizer = tokenizer_of(case)
    result = [hash_block(tokenizer, block) for block in range(LAST_BLOCK)]
    for plane in range(LAST_BLOCK // 256, 17):
        hash_ = 0xCBF29CE484222325
        for block in range(max(plane * 256, LAST_BLOCK), plane * 256 + 256):
            hash_ = hash_block(tokenizer, block, hash_)
        result.append(hash_)
    return result


def real_texts():
    for name in ["xquad-en-train.json", "xquad-en-dev.json"]:
        with open(os.path.join(DATA, name), encoding="utf-8") as file:
            for article in json.load(file)["data"]:
                for paragraph in article["paragraphs"]:
                    yield paragraph["context"]
                    for qa in paragraph["qas"]:
                        yield qa["question"]


def hash_real(case):
    tokenizer = tokenizer_of(case)
    hash_ = 0xCBF29CE484222325
    count = 0
    for text in real_texts():
        encoding = tokenizer.encode(text, add_special_tokens=False)
        hash_ = hash_tokens(hash_, encoding)
        count += len(encoding.ids)
    return hash_, count


# The parts of random texts: letters, capitals, Hangul, Chinese, marks that are stripped, marks that
# stay, white space, punctuation, control characters and special tokens.
FUZZ = ["a", "B", "é", "É", "İ", "ß", "Σ", "가", "각", "北", "豈", "\u0301", "\u0327", "\u0323",
        "\u302e", "\u302f", "\U0001d15e", "\U0001d165", "\U0001d16d", "\u0344", "\u1b44", "\u0301",
        " ", "\t", "\u3000", "\u00a0", "\u200d", "\u0000", "\ufffd", "\u0085", "-", "\u037e", "≠",
        "、", "[SEP]", "[MASK]", "[sep]", "[", "un", "##", "ing", "1895", "x" * 60, "\U0001f600"]


def fuzz(seed, count):
    rng = random.Random(seed)
    tokenizer = {case: tokenizer_of(case) for case in CASES}
    for _ in range(count):
        text = "".join(rng.choice(FUZZ) for _ in range(rng.randrange(0, 14)))
        row = {"text": text}
        for case in CASES:
            encoding = tokenizer[case].encode(text, add_special_tokens=False)
            row[case] = [encoding.ids, [list(o) for o in encoding.offsets]]
        print(json.dumps(row))


def main():
    if sys.argv[1] == "record":
        record = {"tokenizers": tokenizers.__version__, "blocks": {}, "real": {}}
        for case in CASES:
            record["blocks"][case] = " ".join(f"{h >> 32:08x}" for h in hashes(case))
            hash_, count = hash_real(case)
            record["real"][case] = {"hash": f"{hash_:016x}", "tokens": count}
        with open(sys.argv[2], "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    elif sys.argv[1] == "print":
        tokenizer = tokenizer_of(sys.argv[2])
        for block in range(0, LAST_BLOCK, int(sys.argv[3])):
            print(f"{hash_block(tokenizer, block) >> 32:08x}")
    else:
        fuzz(int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
