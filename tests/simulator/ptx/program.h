// Decoded PTX kernels. `parse` makes them, and launch.h runs them.
//
// An unknown opcode, modifier, type or operand is an Objection that contains its text. The parser
// guesses nothing. It skips only hints for caches, unrolling, launch bounds and lines. So if a
// kernel runs, the parser has understood all of it. Source of the semantics: NVIDIA, "Parallel
// Thread Execution ISA", 9.0.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp::testing::ptx {

// An error that a simulated GPU reports, in a program's text or when the program runs.
struct Objection : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kind : uint8_t { kPredicate, kBits, kUnsigned, kSigned, kFloat, kBFloat16, kHalf };

struct Type {
  Kind kind = Kind::kBits;
  int bits = 32;   // total of all elements of a packed type
  int packed = 1;  // 2: bf16x2, f16x2
  int bytes() const { return bits / 8; }
  bool is_float() const { return kind >= Kind::kFloat; }
  bool operator==(const Type&) const = default;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter };

enum class Opcode : uint8_t {
  kAbs,
  kAdd,
  kAnd,
  kBarrier,
  kBfe,
  kBfi,
  kBranch,
  kBrev,
  kClz,
  kConvert,
  kDivide,
  kExit,
  kFence,
  kFma,
  kLoad,
  kLop3,
  kMad,
  kMax,
  kMin,
  kMove,
  kMultiply,
  kNegate,
  kNot,
  kOr,
  kPermute,
  kPopulation,
  kReciprocal,
  kRemainder,
  kSelect,
  kSetPredicate,
  kFunnelShift,
  kShuffle,
  kShiftLeft,
  kShiftRight,
  kSleep,
  kSquareRoot,
  kStore,
  kSubtract,
  kTrap,
  kVote,
  kWarpBarrier,
  kXor,
};

// The words of an instruction that change the effect of its opcode.
enum class Modifier : uint8_t {
  kNone,
  // For mul and mad: the low or high half of the product, or the whole product in a type of twice
  // the width.
  kLow,
  kHigh,
  kWide,
  // Comparisons. Those that end in U are also true for NaN.
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqualU,
  kNotEqualU,
  kLessU,
  kLessEqualU,
  kGreaterU,
  kGreaterEqualU,
  kBothNumbers,
  kSomeNan,
  // Roundings of cvt to an integral value.
  kNearestInteger,
  kTowardsZero,
  kDown,
  kUp,
  // Modifiers of shfl, vote and shf.
  kIndexed,
  kLaneUp,
  kLaneDown,
  kButterfly,
  kAll,
  kAny,
  kUniform,
  kBallot,
  kLeft,
  kRight,
};

// Registers that the hardware sets. The x, y and z registers of a vector are consecutive.
enum class Special : uint8_t {
  kThreadX,
  kThreadY,
  kThreadZ,
  kBlockSizeX,
  kBlockSizeY,
  kBlockSizeZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kGridX,
  kGridY,
  kGridZ,
  kLane,
  kWarp,
  kClock,
};
inline constexpr int kSpecials = 15;

struct Operand {
  enum class Source : uint8_t { kRegister, kValue, kSpecial };
  Source source = Source::kValue;
  int index = 0;  // number of a register, or a Special
  uint64_t value = 0;
};

struct Instruction {
  Opcode opcode = Opcode::kExit;
  Type type;  // type of the result, and of operands if `from` is unset
  Type from;  // type of cvt's operand
  Modifier modifier = Modifier::kNone;
  Modifier combine = Modifier::kNone;  // for setp with a third operand: kAll (and), kAny (or)
  bool wraps = true;                   // true: shf.wrap; false: shf.clamp
  Space space = Space::kGeneric;
  int guard = -1;  // number of a predicate register; -1: no guard
  bool guard_negated = false;
  std::vector<int> results;       // registers; -1: unused. A predicate of shfl or setp is second
  std::vector<Operand> operands;  // the address is the first operand of ld and st
  int64_t offset = 0;             // added to the address
  int target = -1;                // instruction that a branch jumps to
  int line = 0;
  std::string text;
};

// The position of a name in its space.
struct Variable {
  Space space = Space::kParameter;
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;  // ends with kExit
  int registers = 0;
  std::vector<Variable> parameters;
  int64_t parameter_bytes = 0;
  int64_t shared_bytes = 0;
  int64_t local_bytes = 0;  // size for each thread: spills and arrays
};

using Module = std::map<std::string, Kernel>;

// Errors: Objection, with the line of the statement that the parser does not understand.
Module parse(const std::string& text);

// The generic addresses at which the spaces outside of device memory begin.
inline constexpr uint64_t kSharedWindow = 0x7000'0000'0000'0000;
inline constexpr uint64_t kLocalWindow = 0x6000'0000'0000'0000;
inline constexpr uint64_t kParameterWindow = 0x5000'0000'0000'0000;

}  // namespace fsdp::testing::ptx
