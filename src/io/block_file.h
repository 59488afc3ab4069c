// BlockFile: a new file that is written in blocks, and the hashes of its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "io/block_sums.h"
#include "io/disk.h"
#include "io/new_file.h"

namespace fsdp {

// Writes and syncs sums_path(file). This name appears when the content is complete. Errors: IoError
// kCannotCreate, kIoError.
void write_sums_file(Disk& disk, const std::filesystem::path& file, const BlockSums& sums);

// The blocks bypass the page cache (O_DIRECT) if the file system supports it. Errors of all
// functions: IoError kCannotCreate or kIoError, which name the file and the system's reason.
class BlockFile {
 public:
  // Creates the file and reserves its size.
  BlockFile(Disk& disk, std::filesystem::path path, int64_t bytes);

  // Writes the next block: kBlockBytes bytes, or the last bytes of the file. `block` must be
  // aligned to kDirectAlignment.
  void write(std::span<const std::byte> block);
  // Syncs and closes the file, and then writes and syncs sums_path(path()). So if sums_path(path())
  // exists, both files are whole.
  void finish();

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t written() const { return written_; }
  const BlockSums& sums() const { return sums_; }

 private:
  Disk& disk_;
  NewFile file_;
  BlockSums sums_;
  int64_t written_ = 0;  // bytes
};

}  // namespace fsdp
