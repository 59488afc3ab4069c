// Checks that every reader of untrusted files handles bytes that are truncated, changed or not
// text. tools/fuzz searches for more such bytes. Its findings are kept in records/hostile/READER,
// as bad-* if a reader must refuse them, else as ok-*.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "support/byte_reader.h"

namespace fsdp {

// A reader and a small valid file for it.
struct SampledReader {
  ByteReader reader;
  std::string sample;
  bool line_by_line = false;  // a truncated sample may be valid
};

// Each of these functions fails the test if the reader breaks its promise (byte_reader.h).
void check_sample_and_empty(const SampledReader& sampled);
void check_truncations(const SampledReader& sampled);
// Inserts a NUL, a byte order mark or invalid UTF-8 at every position.
void check_foreign_bytes(const SampledReader& sampled);
void check_changed_bytes(const SampledReader& sampled);
// Checks the inputs kept in `folder`/READER. Returns their number.
int64_t check_kept_inputs(std::span<const ByteReader> readers, const std::filesystem::path& folder);

}  // namespace fsdp
