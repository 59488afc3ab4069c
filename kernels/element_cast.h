// Defines the element types of the kernels and their conversions. The conversions use integer
// arithmetic that vectorises on every instruction set and rounds the same way on all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/element/element.h"
#include "runtime/dtype.h"

namespace fsdp::kernels {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

FSDP_ELEMENT float to_float(float value) { return value; }

FSDP_ELEMENT float to_float(BFloat16 value) {
  return bits_as<float>(static_cast<uint32_t>(value.bits) << 16);
}

FSDP_ELEMENT float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t magnitude = value.bits & 0x7fffU;
  const uint32_t normal = (magnitude << 13) + 0x38000000U;  // exponent bias 15 -> 127
  const uint32_t special = (magnitude << 13) | 0x7f800000U;
  // Subnormals count units of 2^-24, so the product is exact. The conversion from a signed integer
  // is one instruction on every instruction set; the one from an unsigned integer is not.
  const uint32_t subnormal =
      bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
  uint32_t bits = magnitude >= 0x7c00U ? special : normal;
  bits = magnitude < 0x400U ? subnormal : bits;
  return bits_as<float>(bits | sign);
}

template <class To>
To from_float(float value) = delete;

template <>
FSDP_ELEMENT float from_float<float>(float value) {
  return value;
}

template <>
FSDP_ELEMENT BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  // Rounds to nearest even: adds half a unit of the last kept bit minus one, plus one if that bit
  // is 1.
  const uint32_t nearest_even = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  // Rounding could turn a NaN into infinity, so a NaN is truncated and made quiet.
  const uint32_t quiet_nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<uint16_t>(is_nan ? quiet_nan : nearest_even)};
}

template <>
FSDP_ELEMENT Float16 from_float<Float16>(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  // The sum changes the exponent bias from 127 to 15 and rounds. Values that round to 65536 or more
  // become infinite.
  uint32_t half = (magnitude + 0xc8000fffU + ((magnitude >> 13) & 1U)) >> 13;
  half = half < 0x7c00U ? half : 0x7c00U;
  // A half below 2^-14 is subnormal: its bits are a count of units of 2^-24. The last bit of the
  // float 0.5 also stands for 2^-24. So adding 0.5 rounds as required, and the low bits of the sum
  // are the count.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5F) - 0x3f000000U;
  half = magnitude < 0x38800000U ? subnormal : half;
  const uint32_t quiet_nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  half = magnitude > 0x7f800000U ? quiet_nan : half;
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000U))};
}

// Calls visit(Element{}) with the element type of float32, bfloat16 or float16.
template <class Visit>
FSDP_ELEMENT void visit_element(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat16:
      return visit(Float16{});
    default:
      return visit(float{});
  }
}

}  // namespace fsdp::kernels
