#include "bert_qa/text/wordpiece_vocab.h"

#include <doctest/doctest.h>

#include "bert_qa/tests/support/records.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

using namespace std::string_literals;

std::string vocabulary_refusal(const std::string& text) {
  try {
    WordPieceVocab::parse(text, "vocab.txt");
  } catch (const fsdp::IoError& error) {
    CHECK(error.code() == fsdp::ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("the line number is the id") {
  const WordPieceVocab vocab = WordPieceVocab::read(example_file("bert-base-uncased-vocab.txt"));
  CHECK(vocab.size() == 30522);
  CHECK(vocab.pad_id() == 0);
  CHECK(vocab.unk_id() == 100);
  CHECK(vocab.cls_id() == 101);
  CHECK(vocab.sep_id() == 102);
  CHECK(vocab.mask_id() == 103);
  CHECK(vocab.token(14477) == "una");
  CHECK(vocab.find("##ffa") == 20961);
  CHECK(!vocab.find("no such token"));
}

TEST_CASE("lines may end in CR LF and the last one without an end") {
  const WordPieceVocab vocab =
      WordPieceVocab::parse("[PAD]\r\n[UNK]\r\n[CLS]\n[SEP]\n[MASK]\na", "v");
  CHECK(vocab.size() == 6);
  CHECK(vocab.find("a") == 5);
}

TEST_CASE("special tokens may have other names") {
  const WordPieceVocab vocab = WordPieceVocab::parse(
      "<s>\n</s>\n<p>\n<u>\n<m>\n", "v",
      {.pad = "<p>", .unk = "<u>", .cls = "<s>", .sep = "</s>", .mask = "<m>"});
  CHECK(vocab.cls_id() == 0);
  CHECK(vocab.mask_id() == 4);
}

TEST_CASE("broken vocabularies are refused with the file and the line") {
  const std::string head = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  CHECK(vocabulary_refusal("") ==
        "the vocabulary is empty (vocab.txt); hint: write one token on every line");
  CHECK(vocabulary_refusal(head + "a\n\nb\n") ==
        "the vocabulary has an empty line (vocab.txt line 7); hint: write one token on every line");
  CHECK(vocabulary_refusal(head + "a\nb\na\n") ==
        "token 'a' is already on line 6 (vocab.txt line 8); hint: remove one of the lines: the "
        "line number is the id");
  CHECK(vocabulary_refusal(head + "a\xff\n") ==
        "the vocabulary is not UTF-8 text (vocab.txt line 6); hint: pass the model's vocab.txt");
  CHECK(vocabulary_refusal(head + "a\rb\n") ==
        "a line of the vocabulary has a carriage return inside (vocab.txt line 6); hint: end every "
        "line with LF or CR LF");
  CHECK(vocabulary_refusal("\xef\xbb\xbf" + head) ==
        "the vocabulary starts with a byte order mark (vocab.txt line 1); hint: save it as plain "
        "UTF-8");
  CHECK(vocabulary_refusal(head + "a\0b\n"s).find("vocab.txt line 6") != std::string::npos);
  CHECK(vocabulary_refusal("[PAD]\n[UNK]\n[CLS]\n[SEP]\n") ==
        "the vocabulary has no special token '[MASK]' (vocab.txt); hint: use a BERT vocabulary, "
        "with [PAD], [UNK], [CLS], [SEP] and [MASK]");
}

TEST_CASE("a vocabulary that cannot be read says so") {
  CHECK_THROWS_AS(WordPieceVocab::read("/nowhere/vocab.txt"), fsdp::IoError);
}

}  // namespace
}  // namespace bert_qa
