// bfloat16 and float16 as bits, and their exact conversions, in integer arithmetic that vectorises.
#pragma once

#include <bit>
#include <cstdint>

namespace fsdp {

struct BFloat16Bits {
  uint16_t bits;
};
struct Float16Bits {
  uint16_t bits;
};

inline float widen(BFloat16Bits value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline float widen(Float16Bits value) {
  const uint32_t sign = (value.bits & 0x8000U) << 16;
  const uint32_t rest = value.bits & 0x7fffU;
  // Shifted into a float's exponent field, 2^112 short; the product restores that, subnormals too.
  const float scaled = std::bit_cast<float>(rest << 13) * 0x1p112F;
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  const uint32_t special = (rest << 13) | 0x7f800000U;
  return std::bit_cast<float>(sign | (rest >= 0x7c00U ? special : finite));
}

// To nearest, ties to even; NaN stays NaN.
inline void narrow(float value, BFloat16Bits& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  out.bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded);
}

inline void narrow(float value, Float16Bits& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rest = bits & 0x7fffffffU;
  const uint32_t normal = (rest - 0x38000000U + 0xfffU + ((rest >> 13) & 1U)) >> 13;
  // Adding 0.5 leaves a float whose last place is 2^-24, float16's smallest step: it rounds there.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5F) - std::bit_cast<uint32_t>(0.5F);
  uint32_t half = rest < 0x38800000U ? subnormal : normal;
  half = half > 0x7c00U ? 0x7c00U : half;
  half = rest >= 0x47800000U ? 0x7c00U : half;
  half = rest > 0x7f800000U ? 0x7e00U : half;
  out.bits = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000U));
}

inline float widen(float value) { return value; }
inline void narrow(float value, float& out) { out = value; }

}  // namespace fsdp
