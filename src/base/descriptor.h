// A file descriptor that closes itself.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace fsdp {

// An owned file descriptor, or none. Move-only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Raises this process's limit of open files, at most to a million. The usual limit of 1024 is less
// than the connections of a large job. Returns true if the limit is higher than before.
inline bool raise_descriptor_limit() {
  constexpr rlim_t kMost = 1 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const rlim_t most = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur >= most) return false;
  limit.rlim_cur = most;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace fsdp
