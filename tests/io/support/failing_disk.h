// FailingDisk: a Disk that fails one call or makes one write short, for tests of error paths.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "io/disk.h"

namespace fsdp {

// Numbers all calls from 0. Syncs nothing, so that tests are fast.
class FailingDisk : public Disk {
 public:
  static constexpr int kShortWrite = -1;
  static constexpr int64_t kNever = -1;

  // Call number `at` fails with `error`. It has no effect, but a failed close closes the
  // descriptor, as the system does. kShortWrite: the call, if it is a write, writes at most
  // `short_bytes` bytes.
  explicit FailingDisk(int64_t at = kNever, int error = 0, size_t short_bytes = 1)
      : at_(at), error_(error), short_bytes_(short_bytes) {}

  int64_t calls() const { return calls_; }

  int open(const char* path, int flags, mode_t mode) override {
    return fails() ? -1 : Disk::open(path, flags, mode);
  }
  ssize_t pwrite(int fd, const void* bytes, size_t size, int64_t offset) override {
    const bool is_short = calls_ == at_ && error_ == kShortWrite;
    if (fails()) return -1;
    return Disk::pwrite(fd, bytes, is_short ? std::min(size, short_bytes_) : size, offset);
  }
  int fallocate(int fd, int64_t size) override { return fails() ? -1 : Disk::fallocate(fd, size); }
  int fsync(int) override { return fails() ? -1 : 0; }
  int close(int fd) override {
    Disk::close(fd);
    return fails() ? -1 : 0;
  }
  int mkdir(const char* path, mode_t mode) override {
    return fails() ? -1 : Disk::mkdir(path, mode);
  }
  int rename(const char* from, const char* to) override {
    return fails() ? -1 : Disk::rename(from, to);
  }
  int unlink(const char* path) override { return fails() ? -1 : Disk::unlink(path); }
  int rmdir(const char* path) override { return fails() ? -1 : Disk::rmdir(path); }

 private:
  bool fails() {
    if (calls_++ != at_ || error_ == kShortWrite) return false;
    errno = error_;
    return true;
  }

  const int64_t at_;
  const int error_;
  const size_t short_bytes_;
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace fsdp
