#include "io/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace fsdp {

int Disk::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }

ssize_t Disk::pwrite(int fd, const void* bytes, size_t size, int64_t offset) {
  return ::pwrite(fd, bytes, size, offset);
}

int Disk::fallocate(int fd, int64_t size) {
  const int result = ::fallocate(fd, 0, 0, size);
  // These errors mean that the file system cannot reserve space (NFS). A full disk is then reported
  // by a write.
  const bool unsupported = errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS;
  return result != 0 && unsupported ? 0 : result;
}

int Disk::fsync(int fd) { return ::fsync(fd); }
int Disk::close(int fd) { return ::close(fd); }
int Disk::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int Disk::rename(const char* from, const char* to) { return ::rename(from, to); }
int Disk::exchange(const char* a, const char* b) {
  if (::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
  const std::string between = std::string(a) + ".old";
  if (rename(b, between.c_str()) != 0 || rename(a, b) != 0) return -1;
  return rename(between.c_str(), a);
}
int Disk::unlink(const char* path) { return ::unlink(path); }
int Disk::rmdir(const char* path) { return ::rmdir(path); }

Disk& Disk::system() {
  static Disk disk;  // shared by all callers: it has no state
  return disk;
}

void remove_folder(Disk& disk, const std::filesystem::path& folder) noexcept {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    disk.unlink(entry->path().c_str());
  }
  disk.rmdir(folder.c_str());
}

std::optional<int64_t> available_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (error || space.available == static_cast<uintmax_t>(-1)) return std::nullopt;
  return static_cast<int64_t>(space.available);
}

}  // namespace fsdp
