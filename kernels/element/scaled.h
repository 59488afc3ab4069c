// Holds products and sums that keep a NaN's sign and payload.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"

namespace fsdp::kernels {

// Returns value · scale, rounded. A NaN becomes quiet and keeps its sign and payload. A product on
// the CPU already has this property. If a GPU multiplies a NaN, the product is always the same NaN.
FSDP_ELEMENT float scaled(float value, float scale) {
  const float product = value * scale;
#if defined(__CUDA_ARCH__)
  const uint32_t bits = bits_as<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits_as<float>(bits | 0x400000U);
#endif
  return product;
}

// Returns a + b, rounded. A NaN becomes quiet and keeps its sign and payload. If both are NaN,
// either one is returned.
FSDP_ELEMENT float added(float a, float b) {
  const float sum = a + b;
#if defined(__CUDA_ARCH__)
  const uint32_t a_bits = bits_as<uint32_t>(a), b_bits = bits_as<uint32_t>(b);
  if ((a_bits & 0x7fffffffU) > 0x7f800000U) return bits_as<float>(a_bits | 0x400000U);
  if ((b_bits & 0x7fffffffU) > 0x7f800000U) return bits_as<float>(b_bits | 0x400000U);
#endif
  return sum;
}

}  // namespace fsdp::kernels
