#include "kernels/cpu/avx512_codes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "kernels/element/dynamic_map.h"

namespace fsdp::kernels {
namespace {

template <bool kSigned>
int64_t wrong_values() {
  std::vector<uint8_t> codes(256);
  for (int code = 0; code < 256; ++code) codes[code] = static_cast<uint8_t>(code);
  std::vector<float> values(256);
  int64_t wrong = 0;
  for (const float absmax : {0.0F, 0.3F, 1.0F, 1e30F}) {
    cpu::decode_by_avx512<kSigned>(codes.data(), 256, absmax, values.data());
    for (int code = 0; code < 256; ++code) {
      const float expected = value_of_code<kSigned>(code) * absmax;
      wrong += bits_as<uint32_t>(values[code]) == bits_as<uint32_t>(expected) ? 0 : 1;
    }
  }
  return wrong;
}

template <bool kSigned>
int64_t wrong_codes(std::vector<float> values) {
  values.resize((values.size() + 15) / 16 * 16);
  const auto numel = static_cast<int64_t>(values.size());
  std::vector<uint8_t> codes(values.size());
  int64_t wrong = 0;
  for (const float inverse : {1.0F, 0.7F}) {
    cpu::encode_by_avx512<kSigned>(values.data(), numel, inverse, codes.data());
    for (size_t i = 0; i < values.size(); ++i) {
      wrong += codes[i] == static_cast<uint8_t>(code_of<kSigned>(values[i] * inverse)) ? 0 : 1;
    }
  }
  return wrong;
}

// Returns magnitudes up to 1 in steps of a prime number of floats, all floats near the place at
// which each code begins, and what is no number.
template <bool kSigned>
std::vector<float> magnitudes() {
  constexpr uint32_t kOne = 0x3f800000U;
  std::vector<float> all{bits_as<float>(0x7fc00000U), bits_as<float>(0x7f800001U)};
  for (uint32_t bits = 0; bits <= kOne; bits += 997) all.push_back(bits_as<float>(bits));
  for (int code = code_of<kSigned>(0) + 1; code < 256; ++code) {
    uint32_t below = 0, begin = kOne;
    while (begin - below > 1) {
      const uint32_t middle = below + (begin - below) / 2;
      (code_of<kSigned>(bits_as<float>(middle)) < code ? below : begin) = middle;
    }
    const uint32_t last = std::min(begin + 100, kOne);
    for (uint32_t bits = begin - 100; bits <= last; ++bits) all.push_back(bits_as<float>(bits));
  }
  return all;
}

TEST_CASE("AVX-512 gives the values and codes of the element functions, bit for bit" *
          doctest::skip(!cpu::has_avx512_codes())) {
  CHECK(wrong_values<true>() == 0);
  CHECK(wrong_values<false>() == 0);
  CHECK(wrong_codes<false>(magnitudes<false>()) == 0);
  std::vector<float> values = magnitudes<true>();
  CHECK(wrong_codes<true>(values) == 0);
  for (float& value : values) value = -value;
  CHECK(wrong_codes<true>(values) == 0);
}

}  // namespace
}  // namespace fsdp::kernels
