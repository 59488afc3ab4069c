#include "simulator/ptx/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>

namespace fsdp::testing::ptx {
namespace {

using Words = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view word, Words words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

const std::map<std::string_view, Opcode> kOpcodes{
    {"abs", Opcode::kAbs},         {"add", Opcode::kAdd},           {"and", Opcode::kAnd},
    {"bar", Opcode::kBarrier},     {"barrier", Opcode::kBarrier},   {"bfe", Opcode::kBfe},
    {"bfi", Opcode::kBfi},         {"bra", Opcode::kBranch},        {"brev", Opcode::kBrev},
    {"clz", Opcode::kClz},         {"cvt", Opcode::kConvert},       {"cvta", Opcode::kMove},
    {"div", Opcode::kDivide},      {"exit", Opcode::kExit},         {"fence", Opcode::kFence},
    {"fma", Opcode::kFma},         {"ld", Opcode::kLoad},           {"lop3", Opcode::kLop3},
    {"mad", Opcode::kMad},         {"max", Opcode::kMax},           {"membar", Opcode::kFence},
    {"min", Opcode::kMin},         {"mov", Opcode::kMove},          {"mul", Opcode::kMultiply},
    {"nanosleep", Opcode::kSleep}, {"neg", Opcode::kNegate},        {"not", Opcode::kNot},
    {"or", Opcode::kOr},           {"popc", Opcode::kPopulation},   {"prmt", Opcode::kPermute},
    {"rcp", Opcode::kReciprocal},  {"rem", Opcode::kRemainder},     {"ret", Opcode::kExit},
    {"selp", Opcode::kSelect},     {"setp", Opcode::kSetPredicate}, {"shf", Opcode::kFunnelShift},
    {"shfl", Opcode::kShuffle},    {"shl", Opcode::kShiftLeft},     {"shr", Opcode::kShiftRight},
    {"sqrt", Opcode::kSquareRoot}, {"st", Opcode::kStore},          {"sub", Opcode::kSubtract},
    {"trap", Opcode::kTrap},       {"vote", Opcode::kVote},         {"xor", Opcode::kXor},
};

// The words that change an instruction's effect, by opcode.
const std::map<Opcode, std::map<std::string_view, Modifier>> kModifiers{
    {Opcode::kMultiply,
     {{"lo", Modifier::kLow}, {"hi", Modifier::kHigh}, {"wide", Modifier::kWide}}},
    {Opcode::kMad, {{"lo", Modifier::kLow}, {"hi", Modifier::kHigh}, {"wide", Modifier::kWide}}},
    {Opcode::kConvert,
     {{"rni", Modifier::kNearestInteger},
      {"rzi", Modifier::kTowardsZero},
      {"rmi", Modifier::kDown},
      {"rpi", Modifier::kUp}}},
    {Opcode::kShuffle,
     {{"idx", Modifier::kIndexed},
      {"up", Modifier::kLaneUp},
      {"down", Modifier::kLaneDown},
      {"bfly", Modifier::kButterfly}}},
    {Opcode::kVote,
     {{"all", Modifier::kAll},
      {"any", Modifier::kAny},
      {"uni", Modifier::kUniform},
      {"ballot", Modifier::kBallot}}},
    {Opcode::kFunnelShift, {{"l", Modifier::kLeft}, {"r", Modifier::kRight}}},
    {Opcode::kSetPredicate,
     {{"eq", Modifier::kEqual},
      {"ne", Modifier::kNotEqual},
      {"lt", Modifier::kLess},
      {"lo", Modifier::kLess},
      {"le", Modifier::kLessEqual},
      {"ls", Modifier::kLessEqual},
      {"gt", Modifier::kGreater},
      {"hi", Modifier::kGreater},
      {"ge", Modifier::kGreaterEqual},
      {"hs", Modifier::kGreaterEqual},
      {"equ", Modifier::kEqualU},
      {"neu", Modifier::kNotEqualU},
      {"ltu", Modifier::kLessU},
      {"leu", Modifier::kLessEqualU},
      {"gtu", Modifier::kGreaterU},
      {"geu", Modifier::kGreaterEqualU},
      {"num", Modifier::kBothNumbers},
      {"nan", Modifier::kSomeNan}}},
};

const std::map<std::string_view, Space> kSpaces{{"global", Space::kGlobal},
                                                {"shared", Space::kShared},
                                                {"local", Space::kLocal},
                                                {"param", Space::kParameter}};

class Decoder {
 public:
  Decoder(std::string_view statement, int line, const Names& names) : names_(names) {
    instruction_.text = trimmed(statement);
    instruction_.line = line;
  }

  Instruction decode(std::string& label) {
    std::string_view rest = instruction_.text;
    if (rest.starts_with('@')) rest = guard(rest.substr(1));
    const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
    words(rest.substr(0, end));
    rest = trimmed(rest.substr(end));
    if (instruction_.opcode == Opcode::kBranch) {
      label = rest;
    } else {
      operands(rest.empty() ? std::vector<std::string>{} : split(rest, ','));
    }
    return std::move(instruction_);
  }

 private:
  [[noreturn]] void object(std::string_view what) const {
    throw Objection(fmt::format("{} (line {}: {})", what, instruction_.line, instruction_.text));
  }

  std::string_view guard(std::string_view rest) {
    instruction_.guard_negated = rest.starts_with('!');
    if (instruction_.guard_negated) rest.remove_prefix(1);
    const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
    instruction_.guard = register_of(rest.substr(0, end));
    return trimmed(rest.substr(end));
  }

  void words(std::string_view text) {
    const std::vector<std::string> all = split(text, '.');
    const auto opcode = kOpcodes.find(all[0]);
    if (opcode == kOpcodes.end()) object("unknown opcode");
    instruction_.opcode = opcode->second;
    converts_address_ = all[0] == "cvta";
    if (all[0] == "bar" || all[0] == "barrier") {
      // bar.warp.sync has the opcode of a block's barrier. Only a later word distinguishes them.
      const bool warp = std::find(all.begin(), all.end(), "warp") != all.end();
      if (warp) instruction_.opcode = Opcode::kWarpBarrier;
    }
    for (size_t i = 1; i < all.size(); ++i) word(all[i]);
    // In cvt, the type of the result is first, and the type of the operand is last.
    if (!types_.empty()) instruction_.type = types_.front();
    instruction_.from = types_.empty() ? Type{} : types_.back();
    check_rounding();
  }

  void word(std::string_view word) {
    if (const auto type = type_of(word)) {
      types_.push_back(*type);
      return;
    }
    if (const auto modifiers = kModifiers.find(instruction_.opcode);
        modifiers != kModifiers.end()) {
      if (const auto found = modifiers->second.find(word); found != modifiers->second.end()) {
        instruction_.modifier = found->second;
        return;
      }
    }
    if (!applies(word)) object(fmt::format("unknown modifier '{}'", word));
  }

  bool applies(std::string_view word) {
    Instruction& i = instruction_;
    switch (i.opcode) {
      case Opcode::kLoad:
      case Opcode::kStore:
        if (const auto space = kSpaces.find(word); space != kSpaces.end()) {
          i.space = space->second;
          return true;
        }
        // Returns true for cache hints and memory orders. They have no effect here, because all
        // accesses run in order.
        return word.find("::") != std::string_view::npos ||
               is_one_of(word, {"v2", "v4", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak",
                                "relaxed", "volatile", "gpu", "cta"});
      case Opcode::kMove:
        if (const auto space = kSpaces.find(word); converts_address_ && space != kSpaces.end()) {
          i.space = space->second;
          return true;
        }
        to_space_ |= word == "to";
        return converts_address_ && word == "to";
      case Opcode::kAdd:
      case Opcode::kSubtract:
      case Opcode::kMultiply:
      case Opcode::kFma:
      case Opcode::kDivide:
      case Opcode::kReciprocal:
      case Opcode::kSquareRoot:
      case Opcode::kConvert:
        rounds_ |= word == "rn";
        return word == "rn";
      case Opcode::kSetPredicate:
        if (word == "and") i.combine = Modifier::kAll;
        if (word == "or") i.combine = Modifier::kAny;
        return word == "and" || word == "or";
      case Opcode::kFunnelShift:
        i.wraps = word == "wrap";
        return word == "wrap" || word == "clamp";
      case Opcode::kBranch:
        return word == "uni";
      case Opcode::kBarrier:
      case Opcode::kWarpBarrier:
        return is_one_of(word, {"sync", "warp", "aligned"});
      case Opcode::kShuffle:
      case Opcode::kVote:
        return word == "sync";
      case Opcode::kFence:
        return is_one_of(word, {"gl", "cta", "gpu", "sys", "acq_rel", "sc"});
      default:
        return false;
    }
  }

  // Requires .rn. Without .rn the assembler may fuse a product and a sum, and quotients and roots
  // are approximate.
  void check_rounding() const {
    const Opcode opcode = instruction_.opcode;
    const bool must = opcode == Opcode::kAdd || opcode == Opcode::kSubtract ||
                      opcode == Opcode::kMultiply || opcode == Opcode::kFma ||
                      opcode == Opcode::kDivide || opcode == Opcode::kReciprocal ||
                      opcode == Opcode::kSquareRoot;
    if (must && instruction_.type.is_float() && !rounds_) {
      object("its rounding is the assembler's choice: compile with -fmad=false");
    }
  }

  void operands(std::vector<std::string> texts) {
    Instruction& i = instruction_;
    const bool has_result = i.opcode != Opcode::kStore && i.opcode != Opcode::kBarrier &&
                            i.opcode != Opcode::kWarpBarrier && i.opcode != Opcode::kFence &&
                            i.opcode != Opcode::kTrap && i.opcode != Opcode::kExit &&
                            i.opcode != Opcode::kSleep;
    if (has_result) {
      if (texts.empty()) object("no result");
      results(texts.front());
      texts.erase(texts.begin());
    }
    for (const std::string& text : texts) operand(text);
    if (converts_address_) convert_address();
    if (i.opcode == Opcode::kBarrier && (texts.size() != 1 || texts[0] != "0")) {
      object("a barrier that is not the whole block's");
    }
  }

  void results(std::string_view text) {
    if (text.starts_with('{')) {
      for (const std::string& each : split(text.substr(1, text.size() - 2), ',')) result(each);
      return;
    }
    for (const std::string& each : split(text, '|')) result(each);
  }

  void result(std::string_view name) {
    instruction_.results.push_back(name == "_" ? -1 : register_of(name));
  }

  void operand(std::string_view text) {
    if (text.starts_with('{')) {
      for (const std::string& each : split(text.substr(1, text.size() - 2), ',')) operand(each);
    } else if (text.starts_with('[')) {
      address(text.substr(1, text.size() - 2));
    } else {
      instruction_.operands.push_back(value_of(text));
    }
  }

  void address(std::string_view text) {
    const size_t plus = text.find('+');
    if (plus != std::string_view::npos) {
      instruction_.offset = static_cast<int64_t>(number(trimmed(text.substr(plus + 1))));
      text = trimmed(text.substr(0, plus));
    }
    if (const auto variable = names_.variable_of(text)) instruction_.space = variable->space;
    instruction_.operands.push_back(value_of(text));
  }

  // Converts the address of a variable, which is its offset in its space, to a generic address
  // (cvta), or converts it back.
  void convert_address() {
    static const std::map<Space, uint64_t> windows{{Space::kGlobal, 0},
                                                   {Space::kShared, kSharedWindow},
                                                   {Space::kLocal, kLocalWindow},
                                                   {Space::kParameter, kParameterWindow}};
    const uint64_t window = windows.at(instruction_.space);
    instruction_.opcode = to_space_ ? Opcode::kSubtract : Opcode::kAdd;
    instruction_.type = {Kind::kUnsigned, 64};
    instruction_.operands.push_back({.source = Operand::Source::kValue, .value = window});
  }

  Operand value_of(std::string_view text) const {
    if (text.empty()) object("an operand is missing");
    if (const auto special = special_of(text)) {
      return {.source = Operand::Source::kSpecial, .index = static_cast<int>(*special)};
    }
    if (const auto found = names_.register_of(text)) {
      return {.source = Operand::Source::kRegister, .index = *found};
    }
    if (const auto variable = names_.variable_of(text)) {
      return {.source = Operand::Source::kValue, .value = static_cast<uint64_t>(variable->offset)};
    }
    return {.source = Operand::Source::kValue, .value = number(text)};
  }

  static std::optional<Special> special_of(std::string_view text) {
    if (text == "%laneid") return Special::kLane;
    if (text == "%warpid") return Special::kWarp;
    if (text == "%globaltimer") return Special::kClock;
    static const std::map<std::string_view, Special> first{{"%tid", Special::kThreadX},
                                                           {"%ntid", Special::kBlockSizeX},
                                                           {"%ctaid", Special::kBlockX},
                                                           {"%nctaid", Special::kGridX}};
    const size_t dot = text.find('.');
    const auto found = first.find(text.substr(0, std::min(dot, text.size())));
    if (dot == std::string_view::npos || found == first.end()) return std::nullopt;
    if (!is_one_of(text.substr(dot + 1), {"x", "y", "z"})) return std::nullopt;
    return static_cast<Special>(static_cast<int>(found->second) + (text[dot + 1] - 'x'));
  }

  int register_of(std::string_view name) const {
    const auto found = names_.register_of(name);
    if (!found) object(fmt::format("unknown register '{}'", name));
    return *found;
  }

  // Returns the bits of 0f…, 0d…, or of a hexadecimal or decimal integer. A negative integer has
  // its two's complement.
  uint64_t number(std::string_view text) const {
    std::string_view digits = text;
    const bool negative = digits.starts_with('-');
    if (negative) digits.remove_prefix(1);
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0' &&
        is_one_of(digits.substr(1, 1), {"f", "F", "d", "D", "x", "X"})) {
      digits.remove_prefix(2);
      base = 16;
    }
    if (digits.ends_with('U')) digits.remove_suffix(1);
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc{} || end != digits.data() + digits.size()) {
      object(fmt::format("unknown operand '{}'", text));
    }
    return negative ? -value : value;
  }

  const Names& names_;
  Instruction instruction_;
  std::vector<Type> types_;
  bool rounds_ = false;
  bool converts_address_ = false;
  bool to_space_ = false;
};

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts{""};
  int depth = 0;
  for (const char letter : text) {
    depth += (letter == '{' || letter == '[' || letter == '(') ? 1 : 0;
    depth -= (letter == '}' || letter == ']' || letter == ')') ? 1 : 0;
    if (letter == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  for (std::string& part : parts) part = std::string(trimmed(part));
  return parts;
}

std::optional<Type> type_of(std::string_view word) {
  static const std::map<std::string_view, Type> types{
      {"pred", {Kind::kPredicate, 8}},      {"b8", {Kind::kBits, 8}},
      {"u8", {Kind::kUnsigned, 8}},         {"s8", {Kind::kSigned, 8}},
      {"b16", {Kind::kBits, 16}},           {"u16", {Kind::kUnsigned, 16}},
      {"s16", {Kind::kSigned, 16}},         {"b32", {Kind::kBits, 32}},
      {"u32", {Kind::kUnsigned, 32}},       {"s32", {Kind::kSigned, 32}},
      {"b64", {Kind::kBits, 64}},           {"u64", {Kind::kUnsigned, 64}},
      {"s64", {Kind::kSigned, 64}},         {"f32", {Kind::kFloat, 32}},
      {"f64", {Kind::kFloat, 64}},          {"bf16", {Kind::kBFloat16, 16}},
      {"bf16x2", {Kind::kBFloat16, 32, 2}}, {"f16", {Kind::kHalf, 16}},
      {"f16x2", {Kind::kHalf, 32, 2}}};
  const auto found = types.find(word);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

Instruction decode(std::string_view statement, int line, const Names& names, std::string& label) {
  return Decoder(statement, line, names).decode(label);
}

}  // namespace fsdp::testing::ptx
