// Products and sums that keep what a NaN holds.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"

namespace fsdp::kernels {

// value · scale, rounded. A NaN stays one, quiet, with sign and payload: a host's product has them
// anyway, a GPU's is one NaN for all.
FSDP_ELEMENT float scaled(float value, float scale) {
  const float product = value * scale;
#if defined(__CUDA_ARCH__)
  const uint32_t bits = bits_as<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits_as<float>(bits | 0x400000U);
#endif
  return product;
}

// a + b, rounded; a NaN as above, of two either.
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
