// Checks that every reader of untrusted files handles bytes that are cut, changed or no text.
// tools/fuzz searches for more; its findings are kept in records/hostile/READER, as bad-* if they
// must be refused and ok-* if not.
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
  bool line_by_line = false;  // a cut sample may be sound
};

// Each of these fails the test if the reader does something else.
void check_sample_and_empty(const SampledReader& sampled);
void check_truncations(const SampledReader& sampled);
// Inserts a NUL, a byte order mark or invalid UTF-8 at every position.
void check_foreign_bytes(const SampledReader& sampled);
void check_changed_bytes(const SampledReader& sampled);
// Checks the inputs kept in `folder`/READER. Returns their number.
int64_t check_kept_inputs(std::span<const ByteReader> readers, const std::filesystem::path& folder);

}  // namespace fsdp
