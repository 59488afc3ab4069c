// AtomicFile: a file that appears under its name only when it is complete and on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A file that is written under a temporary name beside `path` and renamed by commit(). Until then,
// and after any failure, `path` keeps its content. The destructor removes an uncommitted file.
// Move-only. The temporary file is locked while its writer lives, so that remove_leftovers
// recognises the files of dead writers.
class AtomicFile {
 public:
  // Errors: IoError kCannotCreate if the folder is missing or read-only or `path` is a folder;
  //         kIoError if the disk is full or fails.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(AtomicFile&& other) noexcept { swap(other); }
  AtomicFile& operator=(AtomicFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~AtomicFile();

  // Errors: IoError kIoError, which gives the byte offset and the system's reason.
  void write_at(int64_t offset_bytes, std::span<const std::byte> bytes);
  // Writes the content to disk under the temporary name, so a full disk is reported before any name
  // changes.
  // Errors: those of write_at; StateError on a second call.
  void finish();
  // Calls finish() unless it was called, renames the file, and syncs the folder.
  // Errors: those of the constructor and of finish().
  void commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  void swap(AtomicFile& other) noexcept;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty after commit
  int fd_ = -1;
  int lock_ = -1;  // holds the file's lock after finish()
  bool finished_ = false;
};

// Removes the file and syncs the removal to disk before it returns. Does nothing if there is no
// file.
// Errors: IoError kCannotCreate, kIoError.
void remove_file(const std::filesystem::path& path);

}  // namespace fsdp
