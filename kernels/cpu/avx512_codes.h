// Computes values and codes of 8-bit moments (kernels/update_blocks.h) by AVX-512. The results are
// bitwise equal to those of kernels/element/dynamic_map.h, with fewer instructions: a table has
// the line of each decade, so the seven lines are not compared.
#pragma once

#include <cstdint>

namespace fsdp::kernels::cpu {

// Returns false if this CPU has no AVX-512. Then the functions below must not be called.
bool has_avx512_codes();

// They process this many elements at a time.
inline constexpr int64_t kCodesTogether = 16;

// Writes map(code) · absmax of each code. `numel` is a multiple of kCodesTogether.
template <bool kSigned>
void decode_by_avx512(const uint8_t* codes, int64_t numel, float absmax, float* values);

// Writes the code of each product value · inverse, which is within -1 and 1. `numel` is a multiple
// of kCodesTogether.
template <bool kSigned>
void encode_by_avx512(const float* values, int64_t numel, float inverse, uint8_t* codes);

}  // namespace fsdp::kernels::cpu
