// All readers of files from elsewhere against the same hostile bytes. tools/fuzz looks for more;
// what it finds is kept in records/hostile/READER, as bad-* if it must be refused and ok-* if not.
#include "data/support/byte_readers.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <vector>

#include "data/support/safetensors_bytes.h"
#include "data/support/source_tree.h"

namespace fsdp {
namespace {

// A small sound file for each reader.
const std::map<std::string, std::string>& samples() {
  static const std::map<std::string, std::string> texts = {
      {"safetensors", file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("é":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                              8)},
      {"index", R"({"metadata":{"total_size":24},"weight_map":{"é":"m-1","b":"m-2"}})"},
      {"config",
       R"({"model_type":"bert","x":"é","vocab_size":10,"hidden_size":4,"num_hidden_layers":1,)"
       R"("num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":16})"},
      {"json", R"({"é": [1, -2, 2.5e3, true, null, {"a": "b"}]})"},
      {"squad", R"({"data":[{"paragraphs":[{"context":"aé b","qas":[{"id":"1","question":"Q?",)"
                R"("answers":[{"text":"é","answer_start":1}]}]}]}]})"},
      {"vocabulary", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##é\nb\n"},
  };
  return texts;
}

// A copy of exactly this size, so that a sanitizer sees a read past the end.
Verdict read_exactly(const ByteReader& reader, const std::string& bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return reader.read({exact.data(), exact.size()});
}

TEST_CASE("The samples are accepted; empty files are refused") {
  for (const auto& [name, text] : samples()) {
    CAPTURE(name);
    CHECK(read_exactly(byte_reader(name), text) == Verdict::kAccepted);
    CHECK(read_exactly(byte_reader(name), "") == Verdict::kRefused);
    CHECK(last_refusal().starts_with("fsdp: error[65] rank 0/1"));
  }
}

TEST_CASE("Every truncation is read or refused; only line by line it can be sound") {
  for (const auto& [name, text] : samples()) {
    CAPTURE(name);
    for (size_t size = 0; size < text.size(); ++size) {
      CAPTURE(size);
      const Verdict verdict = read_exactly(byte_reader(name), text.substr(0, size));
      if (name != "vocabulary") CHECK(verdict == Verdict::kRefused);
    }
  }
}

TEST_CASE("A NUL, a byte order mark or invalid UTF-8 is refused wherever it stands") {
  const std::string nul(1, '\0'), mark = "\xef\xbb\xbf";
  for (const auto& [name, text] : samples()) {
    CAPTURE(name);
    CHECK(read_exactly(byte_reader(name), mark + text) == Verdict::kRefused);
    for (const std::string& bytes : {nul, std::string("\xff"), std::string("\xed\xa0\x80")}) {
      for (size_t at = 0; at <= text.size(); ++at) {
        CAPTURE(at);
        std::string changed = text;
        changed.insert(at, bytes);
        CHECK(read_exactly(byte_reader(name), changed) == Verdict::kRefused);
      }
    }
  }
}

TEST_CASE("Every byte may change: what is made of it is sound, or it is refused") {
  for (const auto& [name, text] : samples()) {
    CAPTURE(name);
    for (size_t at = 0; at < text.size(); ++at) {
      for (const int value : {0, 9, 10, 13, 32, 34, 44, 48, 57, 92, 93, 123, 125, 128, 195, 255}) {
        std::string changed = text;
        changed[at] = static_cast<char>(value);
        CAPTURE(changed);
        CHECK_NOTHROW(read_exactly(byte_reader(name), changed));
      }
    }
  }
}

TEST_CASE("Inputs that were once a finding, or nearly, stay what they are") {
  int64_t count = 0;
  for (const ByteReader& reader : byte_readers()) {
    const std::filesystem::path folder = record_file("hostile/" + std::string(reader.name));
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      CAPTURE(entry.path().string());
      const std::string file = entry.path().filename().string();
      const Verdict verdict = read_exactly(reader, read_text(entry.path()));
      REQUIRE((file.starts_with("ok-") || file.starts_with("bad-")));
      CHECK(verdict == (file.starts_with("ok-") ? Verdict::kAccepted : Verdict::kRefused));
      ++count;
    }
  }
  CHECK(count > 0);
}

}  // namespace
}  // namespace fsdp
