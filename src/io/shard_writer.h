// Writes one rank's file of a checkpoint, and the hashes of its blocks, in one pass.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "io/block_sums.h"
#include "io/disk.h"

namespace fsdp {

// The beginning of a shard, and the order of its tensors.
struct ShardStart {
  std::string bytes;          // the header with its padding
  std::vector<size_t> order;  // indices of the given tensors, in the order of the file
  int64_t file_bytes = 0;
};
// Returns the beginning of the file that ShardWriter writes for these arguments. `path` is used
// only for messages. Errors: InvalidArgument if names or sizes are invalid (SafetensorsWriter).
ShardStart shard_start(const std::vector<TensorSpec>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::filesystem::path& path);

// Writes a shard whose bytes are already in memory, as ShardWriter does. `image` must be aligned to
// kDirectAlignment. Returns false, with an incomplete file, if a stop was requested meanwhile.
// Errors: those of ShardWriter.
bool write_shard_image(Disk& disk, const std::filesystem::path& path,
                       std::span<const std::byte> image, const std::stop_token& stop);

// Writes the hashes of a shard that was written as `image` in another way. Errors: IoError
// kCannotCreate, kIoError.
void write_sums(Disk& disk, const std::filesystem::path& shard, std::span<const std::byte> image);

// The written file is a safetensors file. Its header is padded so that the tensors begin at a
// multiple of 4,096 bytes. The tensors follow each other in decreasing order of element size, and
// in the given order within one size, so every tensor is aligned to its elements.
//
// The file is written in blocks of 8 MiB from one buffer that is aligned to pages. Each block is
// hashed before it is written. If the file system supports it, the blocks bypass the page cache
// (O_DIRECT). The file does not replace another file: it must not exist.
class ShardWriter {
 public:
  // Effects: creates `path` with the mode of the umask and reserves its size, so a full disk is
  //   reported before the first byte.
  // Errors: IoError kCannotCreate or kIoError, which name the file and the system's reason.
  //   InvalidArgument if names or sizes are invalid (SafetensorsWriter).
  ShardWriter(Disk& disk, std::filesystem::path path, std::vector<TensorSpec> tensors,
              const std::map<std::string, std::string>& metadata = {});
  ~ShardWriter();  // closes the file. It does not remove it; the owner of the folder does.
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Returns the indices of the constructor's `tensors` in the order in which their bytes must be
  // appended.
  const std::vector<size_t>& order() const;
  // Appends the next bytes of the file. Errors: IoError kIoError, which gives the byte offset.
  // InvalidArgument for more bytes than the tensors have.
  void append(std::span<const std::byte> bytes);
  // Writes the rest, syncs and closes the file, and then writes and syncs sums_path(path). The
  // names are not on disk until the caller syncs the folder (sync_names).
  // Errors: StateError if bytes are missing or after a failure. IoError kCannotCreate, kIoError.
  BlockSums finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
