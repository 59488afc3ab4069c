// What every reader of files from elsewhere must do with bytes that are cut, changed or no text.
// tools/fuzz looks for more; what it finds is kept in records/hostile/READER, as bad-* if it must
// be refused and ok-* if not.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "support/byte_reader.h"

namespace fsdp {

// A reader and a small sound file for it.
struct SampledReader {
  ByteReader reader;
  std::string sample;
  bool line_by_line = false;  // a sample that was cut may be sound
};

// Each fails the test for a reader that does something else.
void check_sample_and_empty(const SampledReader& sampled);
void check_truncations(const SampledReader& sampled);
// A NUL, a byte order mark or invalid UTF-8 wherever it stands.
void check_foreign_bytes(const SampledReader& sampled);
void check_changed_bytes(const SampledReader& sampled);
// What is kept in `folder`/READER. Returns the number of inputs.
int64_t check_kept_inputs(std::span<const ByteReader> readers, const std::filesystem::path& folder);

}  // namespace fsdp
