// Buffer: a block of memory that is released by its destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace fsdp {

// An owned block of `bytes` bytes at `data`. Move-only. The destructor calls `release` once. A
// buffer may be empty (null, 0 bytes).
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, int64_t bytes, std::function<void(void*)> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr && release_) release_(data_);
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  std::byte* at(int64_t offset_bytes) const {
    return static_cast<std::byte*>(data_) + offset_bytes;
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  std::function<void(void*)> release_;
};

// Allocates zeroed host memory, aligned to 128 bytes (two cache lines, which cores fetch as a
// pair). A block of 256 KiB or more is a separate mapping, so it returns to the system when it is
// released, independent of malloc's settings.
// Errors: DeviceError if the system is out of memory. The error names the size.
Buffer allocate_host(int64_t bytes);

}  // namespace fsdp
