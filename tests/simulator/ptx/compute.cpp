// Runs arithmetic, moves, comparisons and conversions. Floating-point operations are those of the
// host in the same type: IEEE 754, rounded to nearest even, as .rn in PTX.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "simulator/ptx/bit_operations.h"
#include "simulator/ptx/warp.h"

namespace fsdp::testing::ptx {
namespace {

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

template <class T>
T from_bits(uint64_t bits) {
  return std::bit_cast<T>(static_cast<BitsOf<T>>(bits));
}
template <class T>
uint64_t to_bits(T value) {
  return std::bit_cast<BitsOf<T>>(value);
}

// A GPU's single-precision operations return the same NaN for all payloads of the operands.
float canonical(float value) { return value == value ? value : std::bit_cast<float>(0x7fffffffU); }
double canonical(double value) { return value; }

[[noreturn]] void object(const Warp& warp, Mask active, const char* what) {
  const int lane = active == 0 ? 0 : std::countr_zero(active);
  throw Objection(fmt::format("{} {}", what, warp.where(lane)));
}

// Runs one instruction for the active lanes of a warp.
class Compute {
 public:
  Compute(Warp& warp, const Instruction& instruction, Mask active)
      : warp_(warp),
        instruction_(instruction),
        active_(active),
        operands_{operand(0), operand(1), operand(2), operand(3)} {}

  void run() {
    switch (instruction_.opcode) {
      case Opcode::kMove:
        return move();
      case Opcode::kConvert:
        return convert(warp_, instruction_, active_);
      case Opcode::kSetPredicate:
        return set_predicate();
      case Opcode::kSelect:
        return each<uint64_t>([this](int lane, auto a, auto b, auto) {
          return warp_.predicate(instruction_.operands[2].index, lane) ? a : b;
        });
      case Opcode::kAnd:
        return each<uint64_t>([](int, auto a, auto b, auto) { return a & b; });
      case Opcode::kOr:
        return each<uint64_t>([](int, auto a, auto b, auto) { return a | b; });
      case Opcode::kXor:
        return each<uint64_t>([](int, auto a, auto b, auto) { return a ^ b; });
      case Opcode::kNot:
        return invert();
      case Opcode::kFma:
        return floating([](auto a, auto b, auto c) { return std::fma(a, b, c); });
      case Opcode::kSquareRoot:
        return floating([](auto a, auto, auto) { return std::sqrt(a); });
      default:
        break;
    }
    if (instruction_.type.kind == Kind::kFloat) return float_arithmetic();
    integer([this]<class T>() { integer_arithmetic<T>(); });
  }

 private:
  // Returns an operand of the instruction; 0 if it has no such operand.
  LaneValues operand(size_t index) const {
    static constexpr uint64_t kNothing = 0;
    return index < instruction_.operands.size() ? warp_.values(instruction_.operands[index])
                                                : LaneValues(&kNothing, 0);
  }
  uint64_t operand(size_t index, int lane) const { return operands_[index][lane]; }

  // Stores operation(lane, a, b, c), computed in type T, in the first result.
  template <class T, class Operation>
  void each(Operation operation) {
    uint64_t* const results = warp_.lanes_of(instruction_.results.at(0));
    const auto [a, b, c, d] = operands_;
    const auto one = [&](int lane) {
      results[lane] = to_bits<T>(
          operation(lane, from_bits<T>(a[lane]), from_bits<T>(b[lane]), from_bits<T>(c[lane])));
    };
    // Most masks are full, and the compiler can vectorize the loop for a full mask.
    if (active_ == ~Mask{0}) {
      for (int lane = 0; lane < kLanes; ++lane) one(lane);
    } else {
      for_each_lane(active_, one);
    }
  }

  template <class Visit>
  void integer(Visit visit) {
    const Type& type = instruction_.type;
    const bool is_signed = type.kind == Kind::kSigned;
    if (type.kind >= Kind::kFloat || type.kind == Kind::kPredicate) unknown();
    switch (type.bits) {
      case 16:
        return is_signed ? visit.template operator()<int16_t>()
                         : visit.template operator()<uint16_t>();
      case 32:
        return is_signed ? visit.template operator()<int32_t>()
                         : visit.template operator()<uint32_t>();
      case 64:
        return is_signed ? visit.template operator()<int64_t>()
                         : visit.template operator()<uint64_t>();
      default:
        unknown();
    }
  }

  [[noreturn]] void unknown() const { object(warp_, active_, "an unknown type"); }

  template <class Operation>
  void floating(Operation operation) {
    const auto in = [&]<class T>() {
      each<T>([&](int, T a, T b, T c) { return canonical(operation(a, b, c)); });
    };
    if (instruction_.type == Type{Kind::kFloat, 32}) return in.template operator()<float>();
    if (instruction_.type == Type{Kind::kFloat, 64}) return in.template operator()<double>();
    unknown();
  }

  void float_arithmetic() {
    switch (instruction_.opcode) {
      case Opcode::kAdd:
        return floating([](auto a, auto b, auto) { return a + b; });
      case Opcode::kSubtract:
        return floating([](auto a, auto b, auto) { return a - b; });
      case Opcode::kMultiply:
        return floating([](auto a, auto b, auto) { return a * b; });
      case Opcode::kDivide:
        return floating([](auto a, auto b, auto) { return a / b; });
      case Opcode::kReciprocal:
        return floating([](auto a, auto, auto) { return 1 / a; });
      case Opcode::kNegate:
        return floating([](auto a, auto, auto) { return -a; });
      case Opcode::kAbs:
        return floating([](auto a, auto, auto) { return std::fabs(a); });
      case Opcode::kMin:  // if one operand is NaN, the result is the other one
        return floating([](auto a, auto b, auto) { return std::fmin(a, b); });
      case Opcode::kMax:
        return floating([](auto a, auto b, auto) { return std::fmax(a, b); });
      default:
        unknown();
    }
  }

  template <class T>
  void integer_arithmetic() {
    using Unsigned = std::make_unsigned_t<T>;
    const auto wrapped = [](auto value) { return static_cast<T>(value); };
    switch (instruction_.opcode) {
      case Opcode::kAdd:
        return each<T>([=](int, T a, T b, T) { return wrapped(Unsigned(a) + Unsigned(b)); });
      case Opcode::kSubtract:
        return each<T>([=](int, T a, T b, T) { return wrapped(Unsigned(a) - Unsigned(b)); });
      case Opcode::kMultiply:
      case Opcode::kMad:
        return multiply<T>();
      case Opcode::kDivide:
      case Opcode::kRemainder:
        return divide<T>();
      case Opcode::kNegate:
        return each<T>([=](int, T a, T, T) { return wrapped(Unsigned{0} - Unsigned(a)); });
      case Opcode::kAbs:
        return each<T>(
            [=](int, T a, T, T) { return a < T{0} ? wrapped(Unsigned{0} - Unsigned(a)) : a; });
      case Opcode::kMin:
        return each<T>([](int, T a, T b, T) { return std::min(a, b); });
      case Opcode::kMax:
        return each<T>([](int, T a, T b, T) { return std::max(a, b); });
      case Opcode::kShiftLeft:
      case Opcode::kShiftRight:
        return shift<T>();
      default:
        return bit_fields<T>();
    }
  }

  // Shifts by all 32 bits of the count. Beyond the width, only zeros or the sign remain.
  template <class T>
  void shift() {
    constexpr uint32_t kBits = sizeof(T) * 8;
    const bool left = instruction_.opcode == Opcode::kShiftLeft;
    for_each_lane(active_, [&](int lane) {
      const T value = from_bits<T>(operand(0, lane));
      const auto by = static_cast<uint32_t>(operand(1, lane));
      T result = std::is_signed_v<T> && !left && value < T{0} ? T(-1) : T{0};
      if (by < kBits) {
        result = left ? static_cast<T>(static_cast<std::make_unsigned_t<T>>(value) << by)
                      : static_cast<T>(value >> by);
      }
      warp_.set(instruction_.results.at(0), lane, to_bits(result));
    });
  }

  template <class T>
  void multiply() {
    __extension__ using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    constexpr int kBits = sizeof(T) * 8;
    const Modifier part = instruction_.modifier;
    const bool adds = instruction_.opcode == Opcode::kMad;
    if (part == Modifier::kNone) object(warp_, active_, "a product without .lo, .hi or .wide");
    for_each_lane(active_, [&](int lane) {
      const Wide product = static_cast<Wide>(from_bits<T>(operand(0, lane))) *
                           static_cast<Wide>(from_bits<T>(operand(1, lane)));
      uint64_t result = static_cast<uint64_t>(product);
      if (part == Modifier::kHigh) result = static_cast<uint64_t>(product >> kBits);
      if (adds) result += operand(2, lane);
      if (part != Modifier::kWide) result = static_cast<std::make_unsigned_t<T>>(result);
      warp_.set(instruction_.results.at(0), lane, result);
    });
  }

  template <class T>
  void divide() {
    const bool remainder = instruction_.opcode == Opcode::kRemainder;
    each<T>([&](int lane, T a, T b, T) {
      if (b == T{0}) object(warp_, 1U << lane, "a division by zero");
      // If the lowest value is divided by -1, the host traps and a GPU wraps around.
      if (std::is_signed_v<T> && b == T(-1)) {
        return remainder ? T{0}
                         : static_cast<T>(std::make_unsigned_t<T>{0} - std::make_unsigned_t<T>(a));
      }
      return static_cast<T>(remainder ? a % b : a / b);
    });
  }

  template <class T>
  void bit_fields() {
    using Unsigned = std::make_unsigned_t<T>;
    switch (instruction_.opcode) {
      case Opcode::kPopulation:
        return count<T>([](T a) { return std::popcount(static_cast<Unsigned>(a)); });
      case Opcode::kClz:
        return count<T>([](T a) { return std::countl_zero(static_cast<Unsigned>(a)); });
      case Opcode::kBrev:
        return each<T>([](int, T a, T, T) {
          return static_cast<T>(reversed(static_cast<Unsigned>(a), sizeof(T) * 8));
        });
      case Opcode::kLop3:
        return each<uint32_t>([this](int lane, uint32_t a, uint32_t b, uint32_t c) {
          return lop3(a, b, c, operand(3, lane));
        });
      case Opcode::kPermute:
        return each<uint32_t>(
            [](int, uint32_t a, uint32_t b, uint32_t selector) { return permute(a, b, selector); });
      case Opcode::kFunnelShift:
        return each<uint32_t>([this](int, uint32_t low, uint32_t high, uint32_t by) {
          by = instruction_.wraps ? by & 31 : std::min(by, 32U);
          const uint64_t both = uint64_t{high} << 32 | low;
          const bool left = instruction_.modifier == Modifier::kLeft;
          return static_cast<uint32_t>(left ? both << by >> 32 : both >> by);
        });
      case Opcode::kBfi:
        return each<T>([this](int lane, T field, T value, T) {
          return static_cast<T>(bits_inserted(static_cast<Unsigned>(field),
                                              static_cast<Unsigned>(value), sizeof(T) * 8,
                                              operand(2, lane) & 0xff, operand(3, lane) & 0xff));
        });
      case Opcode::kBfe:
        return each<T>([this](int lane, T a, T, T) {
          return static_cast<T>(bit_field(static_cast<Unsigned>(a), sizeof(T) * 8,
                                          operand(1, lane) & 0xff, operand(2, lane) & 0xff,
                                          std::is_signed_v<T>));
        });
      default:
        unknown();
    }
  }

  // Stores a count. A count has 32 bits for every operand type.
  template <class T, class Count>
  void count(Count count) {
    for_each_lane(active_, [&](int lane) {
      warp_.set(instruction_.results.at(0), lane,
                static_cast<uint32_t>(count(from_bits<T>(operand(0, lane)))));
    });
  }

  // Splits a word into parts, or joins parts into a word.
  void move() {
    const size_t into = instruction_.results.size(), out_of = instruction_.operands.size();
    if (into == 1 && out_of == 1) return each<uint64_t>([](int, auto a, auto, auto) { return a; });
    if (out_of > operands_.size()) object(warp_, active_, "too many parts");
    const int part = instruction_.type.bits / static_cast<int>(std::max(into, out_of));
    const uint64_t mask = part == 64 ? ~uint64_t{0} : (uint64_t{1} << part) - 1;
    for_each_lane(active_, [&](int lane) {
      uint64_t whole = 0;
      for (size_t i = 0; i < out_of; ++i) {
        whole |= out_of == 1 ? operand(i, lane) : (operand(i, lane) & mask) << (part * i);
      }
      for (size_t i = 0; i < into; ++i) {
        if (instruction_.results[i] < 0) continue;
        warp_.set(instruction_.results[i], lane, into == 1 ? whole : whole >> (part * i) & mask);
      }
    });
  }

  void invert() {
    const bool predicate = instruction_.type.kind == Kind::kPredicate;
    each<uint64_t>([&](int, uint64_t a, auto, auto) { return predicate ? a ^ 1 : ~a; });
  }

  void set_predicate() {
    if (instruction_.type.kind == Kind::kFloat) {
      return instruction_.type.bits == 32 ? compare<float>() : compare<double>();
    }
    integer([this]<class T>() { compare<T>(); });
  }

  template <class T>
  void compare() {
    const auto nan = [](T a, T b) { return std::is_floating_point_v<T> && (a != a || b != b); };
    switch (instruction_.modifier) {
      case Modifier::kEqual:
        return compare_by<T>([](T a, T b) { return a == b; });
      case Modifier::kNotEqual:
        return compare_by<T>([=](T a, T b) { return !nan(a, b) && a != b; });
      case Modifier::kLess:
        return compare_by<T>([](T a, T b) { return a < b; });
      case Modifier::kLessEqual:
        return compare_by<T>([](T a, T b) { return a <= b; });
      case Modifier::kGreater:
        return compare_by<T>([](T a, T b) { return a > b; });
      case Modifier::kGreaterEqual:
        return compare_by<T>([](T a, T b) { return a >= b; });
      case Modifier::kEqualU:
        return compare_by<T>([=](T a, T b) { return nan(a, b) || a == b; });
      case Modifier::kNotEqualU:
        return compare_by<T>([](T a, T b) { return a != b; });
      case Modifier::kLessU:
        return compare_by<T>([=](T a, T b) { return nan(a, b) || a < b; });
      case Modifier::kLessEqualU:
        return compare_by<T>([=](T a, T b) { return nan(a, b) || a <= b; });
      case Modifier::kGreaterU:
        return compare_by<T>([=](T a, T b) { return nan(a, b) || a > b; });
      case Modifier::kGreaterEqualU:
        return compare_by<T>([=](T a, T b) { return nan(a, b) || a >= b; });
      case Modifier::kBothNumbers:
        return compare_by<T>([=](T a, T b) { return !nan(a, b); });
      case Modifier::kSomeNan:
        return compare_by<T>(nan);
      default:
        object(warp_, active_, "a comparison without an operator");
    }
  }

  template <class T, class Holds>
  void compare_by(Holds holds_for) {
    uint64_t* const first = result(0);
    uint64_t* const second = instruction_.results.size() > 1 ? result(1) : nullptr;
    for_each_lane(active_, [&](int lane) {
      bool holds = holds_for(from_bits<T>(operand(0, lane)), from_bits<T>(operand(1, lane)));
      bool other = !holds;
      if (instruction_.combine != Modifier::kNone) {
        const bool third = (operand(2, lane) & 1) != 0;
        const bool all = instruction_.combine == Modifier::kAll;
        holds = all ? holds && third : holds || third;
        other = all ? other && third : other || third;
      }
      if (first != nullptr) first[lane] = holds ? 1 : 0;
      if (second != nullptr) second[lane] = other ? 1 : 0;
    });
  }

  // Returns null for an unused result.
  uint64_t* result(size_t index) {
    const int wanted = instruction_.results[index];
    return wanted < 0 ? nullptr : warp_.lanes_of(wanted);
  }

  Warp& warp_;
  const Instruction& instruction_;
  const Mask active_;
  const std::array<LaneValues, 4> operands_;
};

}  // namespace

void compute(Warp& warp, const Instruction& instruction, Mask active) {
  Compute(warp, instruction, active).run();
}

}  // namespace fsdp::testing::ptx
