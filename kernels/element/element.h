// Holds the basic operations of element functions. An element function is the arithmetic of one
// element. Both the CPU's loops and the GPU's threads call it, so both give the same bits.
#pragma once

#include "kernels/cpu/target_clones.h"

// Put FSDP_ELEMENT before an element function. It is then compiled for host and device and inlined
// into the calling loop.
#if defined(__CUDACC__)
#define FSDP_ELEMENT __host__ __device__ __forceinline__
#else
#define FSDP_ELEMENT FSDP_INLINE
#endif

namespace fsdp::kernels {

// Does the same as std::bit_cast, which device code cannot call.
template <class To, class From>
FSDP_ELEMENT To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

// Returns a · b + c, rounded once. In all other expressions the product and the sum are rounded
// separately, because CPU and GPU code is compiled without contraction.
FSDP_ELEMENT float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Returns the square root, correctly rounded as IEEE 754 requires.
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
