// What element functions are made of: the arithmetic of one element, which the CPU's loops and the
// GPU's threads both call, so that both give the same bits.
#pragma once

#include "kernels/cpu/target_clones.h"

// Put before an element function. It is inlined into the loop that calls it, on both sides.
#if defined(__CUDACC__)
#define FSDP_ELEMENT __host__ __device__ __forceinline__
#else
#define FSDP_ELEMENT FSDP_INLINE
#endif

namespace fsdp::kernels {

// std::bit_cast, which is not a device's.
template <class To, class From>
FSDP_ELEMENT To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

// a · b + c, rounded once. Elsewhere a product and a sum are rounded each: neither side contracts.
FSDP_ELEMENT float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Correctly rounded, as IEEE 754 has them.
FSDP_ELEMENT float root(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return __builtin_sqrtf(value);
#endif
}
FSDP_ELEMENT double root(double value) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(value);
#else
  return __builtin_sqrt(value);
#endif
}

}  // namespace fsdp::kernels
