// CheckedShard: one rank's file of a checkpoint, opened for reading.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/block_sums.h"
#include "io/mapped_file.h"

namespace fsdp {

// Throws IoError kCorruptData for a file of a checkpoint.
[[noreturn]] void refuse_damaged(const std::filesystem::path& path, const std::string& what,
                                 std::string cause = {});

// The file, its hashes, and which of its blocks were already compared with them. A reader calls
// check() for bytes before it uses them. Opening the file checks the blocks of the header. The
// memory needed is the size of the header plus 16 MiB. Move-only. Not thread-safe.
class CheckedShard {
 public:
  // `bytes` and `sum` are the size of the file and the hash of its `.sum` file, as the manifest has
  // them.
  // Errors: IoError kIoError if a file cannot be read. IoError kCorruptData that names the file and
  //   the bytes if a file is missing, if the size or a hash differs, or if the file is not a
  //   well-formed safetensors file. A link or a folder is refused as kCorruptData.
  CheckedShard(std::filesystem::path path, int64_t bytes, const Hash128& sum);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsFile& file() const { return file_; }
  const StoredTensor* find(std::string_view name) const { return file_.find(name); }

  // Compares the blocks that contain the bytes [begin, end) of the tensor, unless they were
  // compared before. Then releases the pages of these blocks. Errors: IoError kCorruptData that
  // names the file, the tensor and the bytes of the block.
  void check(const StoredTensor& tensor, int64_t begin, int64_t end);
  // Compares all blocks (fsdp-ckpt verify). Errors: as check().
  void check_all();

 private:
  // The mapped file and its hashes. The constructor of Unread checks the blocks of the header,
  // before `file_` parses the header.
  struct Unread;
  explicit CheckedShard(Unread unread);
  // `tensor` is the name that an error gives; it is empty for a block of the header.
  void check_block(int64_t block, std::string_view tensor);

  MappedFile mapping_;  // maps the whole file, to compute hashes
  BlockSums sums_;
  std::vector<char> checked_;  // by block
  SafetensorsFile file_;
};

}  // namespace fsdp
