// NewFile: a file of a checkpoint while it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "io/disk.h"

namespace fsdp {

enum class Caching : uint8_t {
  kBuffered,  // through the page cache
  kDirect,    // around the page cache (O_DIRECT) as long as the file system and the writes allow it
};

// A file that did not exist before. After a failure it is not removed. Interrupted calls are
// repeated and short writes are continued.
class NewFile {
 public:
  // Errors: IoError kCannotCreate, or kIoError if the disk is full or fails.
  NewFile(Disk& disk, std::filesystem::path path, Caching caching);
  ~NewFile();  // closes the file
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Reserves the file's size on disk, if the file system supports it. Errors: IoError kIoError.
  void reserve(int64_t bytes);
  // Errors: IoError kIoError, which gives the byte offset.
  void write_at(int64_t offset_bytes, std::span<const std::byte> bytes);
  // Syncs and closes the file. Errors: IoError kIoError.
  void finish();

  const std::filesystem::path& path() const { return path_; }

 private:
  void stop_direct();

  Disk& disk_;
  std::filesystem::path path_;
  int fd_ = -1;
  bool direct_ = false;
};

// Writes a small file of a checkpoint and syncs it. Errors: IoError kCannotCreate, kIoError.
void write_new_file(Disk& disk, const std::filesystem::path& path,
                    std::span<const std::byte> bytes);
// Renames a file of a checkpoint. Errors: IoError kIoError.
void give_name(Disk& disk, const std::filesystem::path& from, const std::filesystem::path& to);
// Syncs a folder, so that the names of its files are on disk. Errors: IoError kIoError.
void sync_names(Disk& disk, const std::filesystem::path& folder);

// O_DIRECT needs offsets, sizes and addresses that are multiples of this number.
inline constexpr int64_t kDirectAlignment = 4096;

}  // namespace fsdp
