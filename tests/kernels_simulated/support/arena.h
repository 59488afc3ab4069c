// Memory that holds a call's operands at chosen distances from a boundary, so that the same call
// can run on two devices.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace fsdp::test {

class Arena {
 public:
  // Reserves `bytes` bytes that begin `misaligned` bytes after a boundary of 256 bytes. Returns
  // their offset. Memory of other operands precedes and follows them.
  int64_t take(int64_t bytes, int64_t misaligned = 0) {
    const int64_t begin = (used_ + 255) / 256 * 256 + misaligned;
    used_ = begin + bytes + 16;
    bytes_.resize(static_cast<size_t>(used_ + 512), std::byte{0x3c});
    return begin;
  }
  // Appends numel floats in [-magnitude, magnitude], or in [0, magnitude] if `positive`. Returns
  // their offset.
  int64_t floats(int64_t numel, int64_t misaligned, bool positive = false, float magnitude = 1.0F) {
    const int64_t begin = take(numel * 4, misaligned);
    std::uniform_real_distribution<float> uniform(positive ? 0 : -magnitude, magnitude);
    for (int64_t i = 0; i < numel; ++i) {
      const float value = uniform(random_);
      std::memcpy(bytes_.data() + begin + i * 4, &value, 4);
    }
    return begin;
  }
  int64_t random_bytes(int64_t bytes, int64_t misaligned) {
    const int64_t begin = take(bytes, misaligned);
    for (int64_t i = 0; i < bytes; ++i) {
      bytes_[static_cast<size_t>(begin + i)] = static_cast<std::byte>(random_());
    }
    return begin;
  }
  // Clears a high exponent bit of little-endian floating elements, so that none is infinite or NaN.
  void clear_high_bits(int64_t begin, int64_t numel, int64_t size) {
    for (int64_t i = 1; i <= numel; ++i) {
      bytes_[static_cast<size_t>(begin + i * size - 1)] &= std::byte{0xbf};
    }
  }
  template <class T>
  int64_t value(const T& value) {
    const int64_t begin = take(sizeof value);
    std::memcpy(bytes_.data() + begin, &value, sizeof value);
    return begin;
  }

  // Returns the boundary from which offsets count. Its position in the memory depends on the
  // arena's address.
  std::byte* base() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (256 - address % 256) % 256;
  }
  // Returns a copy. Its operands begin at the first boundary in the copy's memory.
  Arena placed() const {
    Arena other = *this;
    other.bytes_.assign(bytes_.size() + 256, std::byte{0x3c});
    std::memcpy(other.base(), bytes_.data(), bytes_.size());
    return other;
  }
  std::vector<std::byte> operands() { return {base(), base() + used_}; }

 private:
  std::vector<std::byte> bytes_;
  int64_t used_ = 256;
  std::minstd_rand random_{7};
};

}  // namespace fsdp::test
