// Makes the small shards of tests.
#pragma once

#include <doctest/doctest.h>
#include <fsdp/safetensors.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "io/block_sums.h"
#include "io/disk.h"

namespace fsdp {

// The tensors of a shard, and the bytes of each.
struct SmallShard {
  std::vector<TensorSpec> tensors;
  std::vector<std::string> bytes;
};
// Returns tensors of several element sizes with distinct bytes. The last is U8 of `last_bytes`.
SmallShard small_shard(int64_t last_bytes = 3001);
// Writes the shard in pieces of `piece` bytes. Errors: those of ShardWriter.
BlockSums write_shard(Disk& disk, const std::filesystem::path& path, const SmallShard& content,
                      size_t piece = 1 << 20,
                      const std::map<std::string, std::string>& metadata = {});
// Returns the hash of the shard's `.sum` file, as the manifest has it.
Hash128 sum_of(const BlockSums& sums);

// Changes a bit of the byte. A second call changes it back.
void flip_byte(const std::filesystem::path& path, int64_t at);

// Returns the number of open descriptors of this process.
int64_t count_descriptors();

// Returns the IoError of the call, or nothing.
template <typename Call>
std::optional<IoError> io_error_of(const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    return error;
  }
  return {};
}
// Returns the text of the error, or "accepted".
template <typename Call>
std::string text_of_error(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace fsdp
