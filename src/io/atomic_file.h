// Files that appear under their name complete and on disk, or not at all.
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

// Writes to a temporary file beside `path` and renames it in commit(). Until then, and after any
// failure, `path` keeps what it had; the destructor removes what was not committed. Move-only.
// The temporary file is locked while its writer lives, so that remove_leftovers knows a dead one's.
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

  // Errors: IoError kIoError naming the byte and the system's reason.
  void write_at(int64_t offset_bytes, std::span<const std::byte> bytes);
  // Contents on disk, under the temporary name: a full disk is known before a name changes.
  // Errors: as above; StateError on a second call.
  void finish();
  // finish(), unless that was called, then the name, then the folder's entry.
  // Errors: as above.
  void commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  void swap(AtomicFile& other) noexcept;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty once committed
  int fd_ = -1;
  int lock_ = -1;  // from finish() on
  bool finished_ = false;
};

// The file is gone, on disk too, when this returns; nothing is done where there is none.
// Errors: IoError kCannotCreate, kIoError.
void remove_file(const std::filesystem::path& path);

}  // namespace fsdp
