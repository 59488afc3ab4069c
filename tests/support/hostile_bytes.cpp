#include "support/hostile_bytes.h"

#include <doctest/doctest.h>

#include <vector>

#include "support/source_tree.h"

namespace fsdp {
namespace {

// Reads a copy that has exactly this size, so that a sanitizer detects a read beyond its end.
Verdict read_exactly(const ByteReader& reader, const std::string& bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return reader.read({exact.data(), exact.size()});
}

}  // namespace

void check_sample_and_empty(const SampledReader& sampled) {
  CAPTURE(sampled.reader.name);
  CHECK(read_exactly(sampled.reader, sampled.sample) == Verdict::kAccepted);
  CHECK(read_exactly(sampled.reader, "") == Verdict::kRefused);
  CHECK(last_refusal().starts_with("fsdp: error[65] rank 0/1"));
}

void check_truncations(const SampledReader& sampled) {
  CAPTURE(sampled.reader.name);
  for (size_t size = 0; size < sampled.sample.size(); ++size) {
    CAPTURE(size);
    const Verdict verdict = read_exactly(sampled.reader, sampled.sample.substr(0, size));
    if (!sampled.line_by_line) CHECK(verdict == Verdict::kRefused);
  }
}

void check_foreign_bytes(const SampledReader& sampled) {
  CAPTURE(sampled.reader.name);
  const std::string nul(1, '\0'), mark = "\xef\xbb\xbf";
  CHECK(read_exactly(sampled.reader, mark + sampled.sample) == Verdict::kRefused);
  for (const std::string& bytes : {nul, std::string("\xff"), std::string("\xed\xa0\x80")}) {
    for (size_t at = 0; at <= sampled.sample.size(); ++at) {
      CAPTURE(at);
      std::string changed = sampled.sample;
      changed.insert(at, bytes);
      CHECK(read_exactly(sampled.reader, changed) == Verdict::kRefused);
    }
  }
}

void check_changed_bytes(const SampledReader& sampled) {
  CAPTURE(sampled.reader.name);
  for (size_t at = 0; at < sampled.sample.size(); ++at) {
    for (const int value : {0, 9, 10, 13, 32, 34, 44, 48, 57, 92, 93, 123, 125, 128, 195, 255}) {
      std::string changed = sampled.sample;
      changed[at] = static_cast<char>(value);
      CAPTURE(changed);
      CHECK_NOTHROW(read_exactly(sampled.reader, changed));
    }
  }
}

int64_t check_kept_inputs(std::span<const ByteReader> readers,
                          const std::filesystem::path& folder) {
  int64_t count = 0;
  for (const ByteReader& reader : readers) {
    const std::filesystem::path inputs = folder / reader.name;
    if (!std::filesystem::exists(inputs)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(inputs)) {
      CAPTURE(entry.path().string());
      const std::string file = entry.path().filename().string();
      const Verdict verdict = read_exactly(reader, read_text(entry.path()));
      REQUIRE((file.starts_with("ok-") || file.starts_with("bad-")));
      CHECK(verdict == (file.starts_with("ok-") ? Verdict::kAccepted : Verdict::kRefused));
      ++count;
    }
  }
  return count;
}

}  // namespace fsdp
