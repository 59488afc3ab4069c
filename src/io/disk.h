// Disk: the system calls by which checkpoints reach the disk. Tests derive from it to record the
// calls and to let one of them fail.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace fsdp {

// Each function makes one call and returns its result: -1 and errno after a failure. The callers
// repeat a call that was interrupted (EINTR) and continue a write that was short. Thread-safe.
class Disk {
 public:
  Disk() = default;
  virtual ~Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t pwrite(int fd, const void* bytes, size_t size, int64_t offset);
  virtual int fallocate(int fd, int64_t size);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  // Exchanges the names of two folders of one file system. If the file system does not support
  // this, the function makes three renames, and a crash can happen between two of them.
  virtual int exchange(const char* a, const char* b);
  virtual int unlink(const char* path);
  virtual int rmdir(const char* path);

  // Returns the Disk that calls the operating system.
  static Disk& system();
};

// Removes a folder of files. Best effort: errors are ignored.
void remove_folder(Disk& disk, const std::filesystem::path& folder) noexcept;
// Returns the bytes that are free on the disk of a folder. Returns nothing if the system does not
// know.
std::optional<int64_t> available_bytes(const std::filesystem::path& folder);

}  // namespace fsdp
