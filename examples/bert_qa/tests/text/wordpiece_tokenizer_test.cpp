#include "bert_qa/text/wordpiece_tokenizer.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bert_qa/tests/support/records.h"
#include "bert_qa/text/unicode_text.h"
#include "feed/counter_hash.h"

namespace bert_qa {
namespace {

using Ids = std::vector<int32_t>;
using Spans = std::vector<TokenSpan>;
using nlohmann::json;

// record_tokenizer.py explains the cases, texts and hashes of this file.
constexpr uint32_t kLastBlock = 0x324;
constexpr uint64_t kHashStart = 0xCBF29CE484222325;

bool is_unicode_white_space(char32_t c) { return c > 0x20 && is_python_space(c); }

std::string char_vocab() {
  std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (char32_t c = 0x21; c < kLastBlock * 256; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || is_unicode_white_space(c)) continue;
    append_utf8(c, lines);
    lines += "\n##";
    append_utf8(c, lines);
    lines += "\n";
  }
  return lines;
}

// Returns a tokenizer. Each is built only once, because a vocabulary of all characters takes a
// second to build.
const WordPieceTokenizer& tokenizer_of(const std::string& name) {
  static std::map<std::string, WordPieceTokenizer> tokenizers;
  const auto found = tokenizers.find(name);
  if (found != tokenizers.end()) return found->second;
  WordPieceVocab vocab = name.starts_with("bert-")
                             ? WordPieceVocab::read(example_file("bert-base-uncased-vocab.txt"))
                             : WordPieceVocab::parse(char_vocab(), "chars");
  const TokenizerOptions options{.do_lower_case = name.ends_with("-uncased")};
  return tokenizers.try_emplace(name, std::move(vocab), options).first->second;
}

const WordPieceTokenizer& uncased() { return tokenizer_of("bert-uncased"); }

uint64_t hash_tokens(uint64_t hash, const TokenList& tokens) {
  const auto add = [&](uint32_t value) { hash = (hash ^ value) * 0x100000001B3; };
  for (int64_t i = 0; i < tokens.size(); ++i) {
    add(static_cast<uint32_t>(tokens.ids[i]));
    add(static_cast<uint32_t>(tokens.spans[i].begin));
    add(static_cast<uint32_t>(tokens.spans[i].end));
  }
  add(0xFFFFFFFF);
  return hash;
}

uint64_t hash_block(const WordPieceTokenizer& tokenizer, char32_t block, uint64_t hash) {
  TokenList tokens;
  for (char32_t c = block * 256; c < block * 256 + 256; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string character;
    append_utf8(c, character);
    for (const std::string& text :
         {character, "a" + character + "b", "\u0301" + character + "\u0327x"}) {
      tokenizer.tokenize(text, tokens);
      hash = hash_tokens(hash, tokens);
    }
  }
  return hash;
}

std::vector<std::string> hashes(const WordPieceTokenizer& tokenizer) {
  std::vector<std::string> result;
  const auto add = [&](uint64_t hash) { result.push_back(fmt::format("{:08x}", hash >> 32)); };
  for (char32_t block = 0; block < kLastBlock; ++block) {
    add(hash_block(tokenizer, block, kHashStart));
  }
  for (char32_t plane = kLastBlock / 256; plane < 17; ++plane) {
    uint64_t hash = kHashStart;
    for (char32_t block = std::max<char32_t>(plane * 256, kLastBlock); block < plane * 256 + 256;
         ++block) {
      hash = hash_block(tokenizer, block, hash);
    }
    add(hash);
  }
  return result;
}

void check_equal(const std::vector<std::string>& ours, const std::vector<std::string>& theirs) {
  REQUIRE(ours.size() == theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    INFO(fmt::format("block {:#x} (planes after {:#x})", i, kLastBlock));
    CHECK(ours[i] == theirs[i]);
  }
}

json record() { return json::parse(fsdp::read_text(record_file("tokenizer.json"))); }

TEST_CASE("golden strings give the ids of the reference") {
  CHECK(uncased().tokenize("unaffable").ids == Ids{14477, 20961, 3468});
  CHECK(uncased().tokenize("(1895-1943).").ids == Ids{1006, 6301, 1011, 3826, 1007, 1012});
  CHECK(uncased().tokenize("北京 is 中国's capital").ids ==
        Ids{1781, 1755, 2003, 1746, 1799, 1005, 1055, 3007});
  CHECK(uncased().tokenize("ÀÉÎõü naïve café").ids == Ids{29347, 3695, 2226, 15743, 7668});
}

TEST_CASE("spans are code points of the original text, whatever normalisation did to it") {
  CHECK(uncased().tokenize("ÀÉÎõü naïve café").spans ==
        Spans{{0, 2}, {2, 4}, {4, 5}, {6, 11}, {12, 16}});
  CHECK(uncased().tokenize(" \u2028a\u00a0b\u0085c").spans == Spans{{2, 3}, {4, 7}});
  CHECK(uncased().tokenize("cafe\u0301 x").spans == Spans{{0, 4}, {6, 7}});
  CHECK(uncased().tokenize("").size() == 0);
  CHECK(uncased().tokenize(" \t\n").size() == 0);
}

TEST_CASE("a special token in the text is one token, and only as it is spelled") {
  const TokenList tokens = uncased().tokenize("x[MASK]é [sep]");
  CHECK(tokens.ids == Ids{1060, 103, 1041, 1031, 19802, 1033});
  CHECK(tokens.spans == Spans{{0, 1}, {1, 7}, {7, 8}, {9, 10}, {10, 13}, {13, 14}});
}

TEST_CASE("a word of more than 100 characters is one unknown token") {
  const std::string hundred(100, 'a');
  CHECK(uncased().tokenize(hundred).size() > 1);
  for (const std::string& word : {hundred + "a", hundred + "é", "é" + hundred,
                                  hundred + hundred + "é" + hundred + "\u200d" + hundred}) {
    const TokenList tokens = uncased().tokenize("b " + word + " c");
    REQUIRE(tokens.ids == Ids{1038, 100, 1039});
    CHECK(tokens.spans[1] == TokenSpan{2, 2 + static_cast<int32_t>(count_code_points(word))});
  }
}

TEST_CASE("malformed UTF-8 counts as one dropped character a byte") {
  const TokenList tokens = uncased().tokenize(
      "a\xff\x80 b\xe4\xb8 \xed\xa0\x80"
      "c");
  CHECK(tokens.ids == Ids{1037, 1038, 1039});
  CHECK(tokens.spans == Spans{{0, 1}, {4, 5}, {11, 12}});
}

TEST_CASE("any bytes give tokens in order, inside the text") {
  const std::string parts[] = {"a",
                               "B",
                               "\xff",
                               "\xe4\xb8",
                               "\u0301",
                               "\u302e",
                               "\U0001d15e",
                               "北",
                               "각",
                               "[SEP]",
                               "[",
                               " ",
                               "-",
                               std::string(1, '\0'),
                               std::string(150, 'x')};
  uint64_t random = 1;
  const auto below = [&](uint64_t bound) { return (random = fsdp::mix64(random)) % bound; };
  TokenList tokens;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t n = below(12); n > 0; --n) {
      if (below(4) == 0) {
        text += static_cast<char>(below(256));
      } else {
        text += parts[below(std::size(parts))];
      }
    }
    uncased().tokenize(text, tokens);
    const int64_t end = count_code_points(text);
    int32_t last = 0;
    bool sound = tokens.spans.size() == tokens.ids.size();
    for (const TokenSpan& span : tokens.spans) {
      sound = sound && span.begin >= last && span.begin < span.end && span.end <= end;
      last = span.begin;
    }
    CHECK_MESSAGE(sound, text);
  }
}

TEST_CASE("token lists are replaced, not appended to") {
  TokenList tokens;
  uncased().tokenize("unaffable", tokens);
  uncased().tokenize("a", tokens);
  CHECK(tokens.ids == Ids{1037});
}

TEST_CASE("every Unicode scalar value gives the ids and offsets of the record") {
  const json recorded = record();
  for (const auto& [name, line] : recorded.at("blocks").items()) {
    CAPTURE(name);
    std::istringstream words(line.get<std::string>());
    const std::vector<std::string> theirs(std::istream_iterator<std::string>{words}, {});
    check_equal(hashes(tokenizer_of(name)), theirs);
  }
}

TEST_CASE("real questions and contexts give the ids and offsets of the record") {
  const json recorded = record();
  for (const auto& [name, expected] : recorded.at("real").items()) {
    CAPTURE(name);
    const WordPieceTokenizer& tokenizer = tokenizer_of(name);
    uint64_t hash = kHashStart;
    int64_t count = 0;
    TokenList tokens;
    const auto add = [&](const json& text) {
      tokenizer.tokenize(text.get_ref<const std::string&>(), tokens);
      hash = hash_tokens(hash, tokens);
      count += tokens.size();
    };
    for (const char* file : {"xquad-en-train.json", "xquad-en-dev.json"}) {
      const json questions = json::parse(fsdp::read_text(example_file(file)));
      for (const json& article : questions.at("data")) {
        for (const json& paragraph : article.at("paragraphs")) {
          add(paragraph.at("context"));
          for (const json& qa : paragraph.at("qas")) add(qa.at("question"));
        }
      }
    }
    CHECK(count == expected.at("tokens").get<int64_t>());
    CHECK(fmt::format("{:016x}", hash) == expected.at("hash").get<std::string>());
  }
}

// The record contains all blocks. This test uses the installed reference, which may be another
// version.
TEST_CASE("live: every eighth block of Unicode agrees with the installed reference") {
  const std::vector<std::string> theirs =
      fsdp::python_lines("examples/bert_qa/tests/text/record_tokenizer.py", "print bert-uncased 8");
  if (theirs.empty()) return;
  std::vector<std::string> ours;
  for (char32_t block = 0; block < kLastBlock; block += 8) {
    ours.push_back(fmt::format("{:08x}", hash_block(uncased(), block, kHashStart) >> 32));
  }
  check_equal(ours, theirs);
}

TEST_CASE("live: random mixtures of marks, scripts and controls agree with the reference") {
  const std::vector<std::string> rows =
      fsdp::python_lines("examples/bert_qa/tests/text/record_tokenizer.py", "fuzz 7 1000");
  for (const std::string& line : rows) {
    const json row = json::parse(line);
    for (const char* name : {"bert-uncased", "bert-cased", "chars-uncased", "chars-cased"}) {
      INFO(name, " ", line);
      const TokenList tokens =
          tokenizer_of(name).tokenize(row.at("text").get_ref<const std::string&>());
      json spans = json::array();
      for (const TokenSpan& span : tokens.spans) spans.push_back({span.begin, span.end});
      CHECK(json(tokens.ids) == row.at(name).at(0));
      CHECK(spans == row.at(name).at(1));
    }
  }
}

}  // namespace
}  // namespace bert_qa
