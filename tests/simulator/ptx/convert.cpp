// Runs cvt between integers, between floating types, and between an integer and a floating type.
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "kernels/element_cast.h"
#include "simulator/ptx/warp.h"

namespace fsdp::testing::ptx {
namespace {

constexpr uint16_t kNarrowNan = 0x7fff;

int64_t signed_of(uint64_t bits, const Type& type) {
  return static_cast<int64_t>(bits << (64 - type.bits)) >> (64 - type.bits);
}
uint64_t unsigned_of(uint64_t bits, const Type& type) {
  return type.bits == 64 ? bits : bits & ((uint64_t{1} << type.bits) - 1);
}

// Returns the exact value of these bits.
double double_of(uint64_t bits, const Type& type) {
  const auto half = static_cast<uint16_t>(bits);
  switch (type.kind) {
    case Kind::kBFloat16:
      return kernels::to_float(kernels::BFloat16{half});
    case Kind::kHalf:
      return kernels::to_float(kernels::Float16{half});
    default:
      return type.bits == 64 ? std::bit_cast<double>(bits)
                             : std::bit_cast<float>(static_cast<uint32_t>(bits));
  }
}

double rounded(double value, Modifier how) {
  switch (how) {
    case Modifier::kNearestInteger:
      return std::nearbyint(value);
    case Modifier::kTowardsZero:
      return std::trunc(value);
    case Modifier::kDown:
      return std::floor(value);
    case Modifier::kUp:
      return std::ceil(value);
    default:
      return value;
  }
}

uint64_t narrow(float value, Kind kind) {
  if (value != value) return kNarrowNan;
  return kind == Kind::kBFloat16 ? kernels::from_float<kernels::BFloat16>(value).bits
                                 : kernels::from_float<kernels::Float16>(value).bits;
}

// Returns the nearest integer that fits into the type, and 0 for NaN.
uint64_t integer_of(double value, const Type& to) {
  if (value != value) return 0;
  if (to.kind == Kind::kSigned) {
    const double limit = std::ldexp(1.0, to.bits - 1);
    if (value >= limit) return static_cast<uint64_t>(limit) - 1;
    if (value < -limit) return ~(static_cast<uint64_t>(limit) - 1);
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
  if (value <= 0) return 0;
  if (value >= std::ldexp(1.0, to.bits)) return unsigned_of(~uint64_t{0}, to);
  return static_cast<uint64_t>(value);
}

class Conversion {
 public:
  Conversion(Warp& warp, const Instruction& instruction)
      : warp_(warp), instruction_(instruction), to_(instruction.type), from_(instruction.from) {}

  uint64_t of(int lane) const {
    if (to_.packed == 2) return packed(lane);
    const uint64_t bits = warp_.value(instruction_.operands.at(0), lane);
    return from_.is_float() ? from_floating(bits, lane) : from_integer(bits, lane);
  }

 private:
  [[noreturn]] void unknown(int lane) const {
    throw Objection("an unknown conversion " + warp_.where(lane));
  }

  uint64_t from_floating(uint64_t bits, int lane) const {
    const double value = rounded(double_of(bits, from_), instruction_.modifier);
    if (!to_.is_float()) {
      if (instruction_.modifier == Modifier::kNone) unknown(lane);
      return integer_of(value, to_);
    }
    return floating(value, lane);
  }

  uint64_t from_integer(uint64_t bits, int lane) const {
    const bool is_signed = from_.kind == Kind::kSigned;
    if (!to_.is_float()) {
      const uint64_t wide =
          is_signed ? static_cast<uint64_t>(signed_of(bits, from_)) : unsigned_of(bits, from_);
      return unsigned_of(wide, to_);
    }
    const auto convert = [&](auto value) -> uint64_t {
      if (to_ == Type{Kind::kFloat, 64}) return std::bit_cast<uint64_t>(static_cast<double>(value));
      if (to_ == Type{Kind::kFloat, 32}) return std::bit_cast<uint32_t>(static_cast<float>(value));
      unknown(lane);
    };
    return is_signed ? convert(signed_of(bits, from_)) : convert(unsigned_of(bits, from_));
  }

  // Converts to 16 bits only from single precision, because a double would be rounded twice here.
  uint64_t floating(double value, int lane) const {
    if (to_.kind == Kind::kFloat) {
      if (to_.bits == 64) return std::bit_cast<uint64_t>(value);
      if (value != value) return 0x7fffffffU;
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    }
    if (from_ != Type{Kind::kFloat, 32}) unknown(lane);
    return narrow(static_cast<float>(value), to_.kind);
  }

  // Runs cvt.rn.bf16x2.f32 d, a, b. The upper half of the result is a.
  uint64_t packed(int lane) const {
    if (from_ != Type{Kind::kFloat, 32} || instruction_.operands.size() != 2) unknown(lane);
    const auto half = [&](size_t index) {
      const uint64_t bits = warp_.value(instruction_.operands[index], lane);
      return narrow(std::bit_cast<float>(static_cast<uint32_t>(bits)), to_.kind);
    };
    return half(0) << 16 | half(1);
  }

  Warp& warp_;
  const Instruction& instruction_;
  const Type to_, from_;
};

}  // namespace

void convert(Warp& warp, const Instruction& instruction, Mask active) {
  const Conversion conversion(warp, instruction);
  for_each_lane(active,
                [&](int lane) { warp.set(instruction.results.at(0), lane, conversion.of(lane)); });
}

}  // namespace fsdp::testing::ptx
