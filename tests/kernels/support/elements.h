// Decodes and rounds element types with slow, simple code, as a reference for the kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/dtype.h"

namespace fsdp::test {

inline const std::vector<DType> kElementTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
extern const std::vector<int64_t> kSizes;  // sizes that the tests use on the kernels' device

// Returns the value of a float16 or bfloat16 with these bits.
float decode(DType dtype, uint16_t bits);
// Returns the bits of the nearest float16 or bfloat16, ties to even. For NaN it returns a quiet
// NaN.
uint16_t encode(DType dtype, float value);

// An array of one dtype. Guard bytes follow it, which a kernel must not change.
class Elements {
 public:
  Elements(DType dtype, int64_t numel);

  DType dtype() const { return dtype_; }
  int64_t numel() const { return numel_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  uint32_t bits(int64_t index) const;
  float get(int64_t index) const;
  void set(int64_t index, float value);  // rounds
  bool guard_is_intact() const;

 private:
  DType dtype_;
  int64_t numel_;
  std::vector<uint8_t> bytes_;
};

// Fills with deterministic values of many magnitudes and both signs. If `specials` is true, every
// 16th value is special: a zero, a subnormal, an infinity, NaN, the largest value, or a tie of a
// 16-bit dtype.
void fill_with_values(Elements& elements, uint32_t seed, bool specials);
std::vector<float> values(int64_t numel, uint32_t seed, float magnitude = 1.0F);

// Returns true if the bits are equal or if both are NaN.
bool same(float a, float b);
uint32_t bits_of(float value);

}  // namespace fsdp::test
