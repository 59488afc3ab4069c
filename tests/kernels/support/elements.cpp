#include "kernels/support/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace fsdp::test {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr uint8_t kGuard = 0xa5;

struct Format {
  int mantissa_bits, exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
Format format_of(DType dtype) { return dtype == DType::kBFloat16 ? Format{7, 8} : Format{10, 5}; }

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array<float, 24> kSpecials{
    0.0F,         -0.0F,       kInf,      -kInf,    kNan,       -kNan,         0x1p-149F,
    -0x1p-140F,   0x1p-126F,   0x1p-24F,  0x1p-25F, 0x1.8p-25F, 0x1p-14F,      0x1.ffcp-15F,
    0x1.ffep-15F, 65504.0F,    65519.9F,  65520.0F, -1e30F,     3.4028235e38F, 0x1.fefffep127F,
    1.00390625F,  1.01171875F, 0x1.006p0F};

}  // namespace

float decode(DType dtype, uint16_t bits) {
  const Format format = format_of(dtype);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? kNan : static_cast<float>(sign * kInf);
  }
  const int implicit = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int power = (exponent == 0 ? 1 : exponent) - format.bias() - format.mantissa_bits;
  return static_cast<float>(sign * std::ldexp(mantissa + implicit, power));
}

uint16_t encode(DType dtype, float value) {
  const Format format = format_of(dtype);
  const int infinite = ((1 << format.exponent_bits) - 1) << format.mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | infinite | (1 << (format.mantissa_bits - 1)));
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinite);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias());
  // The value is counted in units of the last place. If it rounds up to the next power of two, the
  // exponent increases by one.
  const int exponent_field = exponent + format.bias();
  const auto units =
      static_cast<int64_t>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  const int64_t bits = (static_cast<int64_t>(exponent_field - 1) << format.mantissa_bits) + units;
  return static_cast<uint16_t>(sign | static_cast<int>(std::min<int64_t>(bits, infinite)));
}

Elements::Elements(DType dtype, int64_t numel)
    : dtype_(dtype),
      numel_(numel),
      bytes_(static_cast<size_t>(numel * size_of(dtype) + kGuardBytes), kGuard) {}

uint32_t Elements::bits(int64_t index) const {
  uint32_t bits = 0;
  const auto size = static_cast<size_t>(size_of(dtype_));
  std::memcpy(&bits, bytes_.data() + static_cast<size_t>(index) * size, size);
  return bits;
}

float Elements::get(int64_t index) const {
  if (dtype_ == DType::kFloat32) return std::bit_cast<float>(bits(index));
  return decode(dtype_, static_cast<uint16_t>(bits(index)));
}

void Elements::set(int64_t index, float value) {
  const auto size = static_cast<size_t>(size_of(dtype_));
  const uint32_t bits = dtype_ == DType::kFloat32 ? bits_of(value) : encode(dtype_, value);
  std::memcpy(bytes_.data() + static_cast<size_t>(index) * size, &bits, size);
}

bool Elements::guard_is_intact() const {
  for (auto i = static_cast<size_t>(numel_ * size_of(dtype_)); i < bytes_.size(); ++i) {
    if (bytes_[i] != kGuard) return false;
  }
  return true;
}

void fill_with_values(Elements& elements, uint32_t seed, bool specials) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> mantissa(-2.0F, 2.0F);
  std::uniform_int_distribution<int> exponent(-20, 14);
  for (int64_t i = 0; i < elements.numel(); ++i) {
    float value = std::ldexp(mantissa(random), exponent(random));
    if (specials && i % 16 == 5) value = kSpecials[static_cast<size_t>(i / 16) % kSpecials.size()];
    elements.set(i, value);
  }
}

std::vector<float> values(int64_t numel, uint32_t seed, float magnitude) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-magnitude, magnitude);
  std::vector<float> result(static_cast<size_t>(numel));
  for (float& value : result) value = uniform(random);
  return result;
}

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

}  // namespace fsdp::test
