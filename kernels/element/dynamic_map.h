// Computes the values and codes of kernels/update_blocks.h without tables and branches, so that a
// loop over elements vectorises.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"

namespace fsdp::kernels {

// A map of codes. The values of decade d have the numbers kFirst · 2^d to 2 · kFirst · 2^d - 1, the
// value 0 has the number kFirst - 1, and the value 1 has the number kFirst · 2^7.
//
// Within a decade the value is a linear function of the number. The lines of two neighbouring
// decades meet at their border, and the line of the higher decade is steeper. So the value is the
// largest one of the seven lines. Conversely, the number is the smallest one of the inverse lines.
template <bool kSigned>
struct DynamicMap {
  static constexpr float kFirst = kSigned ? 1 : 2;
  static constexpr float kOne = kFirst * 128;
  // The middle between 0 and the lowest value, and between the highest value below 1 and 1.
  static constexpr float kLowest = static_cast<float>((0.1 + 0.45 / kFirst) * 1e-6 / 2);
  static constexpr float kHighest = static_cast<float>(1 - 0.225 / (kFirst * 64));

  // The line value(number) of a decade that ends at `end` and has `count` values, and its inverse.
  // The inverse is exact at the lower ends of the intervals in which a value is the nearest.
  template <int kDecade>
  struct Line {
    static constexpr double kEnds[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    static constexpr double kEnd = kEnds[kDecade];
    static constexpr double kCount = kFirst * (1 << kDecade);
    static constexpr float kSlope = static_cast<float>(kEnd * 0.9 / kCount);
    static constexpr float kOffset = static_cast<float>(kEnd * (0.45 / kCount - 0.8));
    static constexpr float kInverseSlope = static_cast<float>(kCount / 0.9 / kEnd);
    // Slightly lower, so that the number of every value below kHighest is less than kOne.
    static constexpr float kInverseOffset = static_cast<float>(kCount * (0.8 / 0.9 - 1e-7));

    FSDP_ELEMENT static float value(float number) { return fused(number, kSlope, kOffset); }
    FSDP_ELEMENT static float number(float value) {
      return fused(value, kInverseSlope, kInverseOffset);
    }
  };
  // Compare the bits as integers, which needs one instruction also if there could be a NaN. If both
  // are negative, the result is one of them.
  FSDP_ELEMENT static float larger(float a, float b) {
    const auto x = bits_as<int32_t>(a), y = bits_as<int32_t>(b);
    return bits_as<float>(x > y ? x : y);
  }
  FSDP_ELEMENT static float smaller(float a, float b) {
    const auto x = bits_as<int32_t>(a), y = bits_as<int32_t>(b);
    return bits_as<float>(x < y ? x : y);
  }

  // Returns the value of a number.
  FSDP_ELEMENT static float value_of_number(float number) {
    const float low = larger(Line<0>::value(number), Line<1>::value(number));
    const float middle = larger(Line<2>::value(number), Line<3>::value(number));
    const float high = larger(Line<4>::value(number), Line<5>::value(number));
    const float most = larger(larger(low, middle), larger(high, Line<6>::value(number)));
    // All lines are negative at the number of the value 0.
    return smaller(larger(most, 0.0F), 1.0F);
  }

  // Returns the number of the value nearest to `magnitude`, which is at most 1, among the values
  // below 1. The result is to be rounded towards zero. A NaN has the number of the value 0.
  FSDP_ELEMENT static float number_of(float magnitude) {
    const float low = smaller(Line<0>::number(magnitude), Line<1>::number(magnitude));
    const float middle = smaller(Line<2>::number(magnitude), Line<3>::number(magnitude));
    const float high = smaller(Line<4>::number(magnitude), Line<5>::number(magnitude));
    float number = smaller(smaller(low, middle), smaller(high, Line<6>::number(magnitude)));
    // The interval of a decade's lowest value begins 0.2 of an interval later, because the values
    // below are denser. This value's number is a power of two.
    const float lowest = bits_as<float>(bits_as<uint32_t>(number) & 0x7f800000U);
    number = number < lowest + 0.2F ? number - 0.2F : number;
    number = larger(number, kFirst);
    return magnitude >= kLowest ? number : kFirst - 1;
  }
};

inline constexpr uint32_t kSignBit = 0x80000000U;

// Returns map(code) of a moment. exp_avg has the signed map.
template <bool kSigned>
FSDP_ELEMENT float value_of_code(int32_t code) {
  using Map = DynamicMap<kSigned>;
  if constexpr (kSigned) {
    const auto number = static_cast<float>(code - 127);
    const uint32_t bits = bits_as<uint32_t>(number);
    const float value = Map::value_of_number(bits_as<float>(bits & ~kSignBit));
    return bits_as<float>(bits_as<uint32_t>(value) | (bits & kSignBit));
  } else {
    return Map::value_of_number(static_cast<float>(code + 1));
  }
}

// Returns the code with the value nearest to `value`, which is within -1 and 1. Only the positive
// values include 1.
template <bool kSigned>
FSDP_ELEMENT int32_t code_of(float value) {
  using Map = DynamicMap<kSigned>;
  const uint32_t sign = kSigned ? bits_as<uint32_t>(value) & kSignBit : 0;
  float number = Map::number_of(bits_as<float>(bits_as<uint32_t>(value) ^ sign));
  number = bits_as<float>(bits_as<uint32_t>(number) | sign);
  number = value >= Map::kHighest ? Map::kOne : number;
  return static_cast<int32_t>(number) + (kSigned ? 127 : -1);
}

// Returns the bits of |value|. The largest of them are the bits of the largest magnitude. The bits
// of a NaN are larger than those of all numbers.
FSDP_ELEMENT uint32_t magnitude_bits(float value) { return bits_as<uint32_t>(value) & 0x7fffffffU; }

// Returns the factor by which the values of a block are multiplied before code_of: 1 / absmax. It
// is finite, so that a zero stays zero.
FSDP_ELEMENT float inverse_of(float absmax) {
  constexpr float kLargest = 0x1.fffffep127F;
  const float inverse = 1.0F / absmax;
  return inverse < kLargest ? inverse : kLargest;
}

}  // namespace fsdp::kernels
