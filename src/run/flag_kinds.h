// Builds flags by the kind of their value: a choice, a whole number, a number, a switch.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/program_text.h"
#include "fsdp/run_options.h"

namespace fsdp {

// Throws InvalidArgument (64) for a value that a flag does not allow.
[[noreturn]] inline void refuse_value(std::string_view flag, std::string_view value,
                                      std::string allowed) {
  throw InvalidArgument(
      {.what = fmt::format("{} cannot be '{}'", flag, value), .hint = std::move(allowed)},
      ExitCode::kUsage);
}

// A value of a flag and its name on the command line.
template <class T>
struct Choice {
  std::string_view name;
  T value;
  bool other_spelling = false;  // accepted, but listed neither in help nor in errors
};

inline constexpr std::array kBools{Choice{"true", true},      Choice{"false", false},
                                   Choice{"1", true, true},   Choice{"0", false, true},
                                   Choice{"yes", true, true}, Choice{"no", false, true},
                                   Choice{"on", true, true},  Choice{"off", false, true}};

// Returns the names of the choices as one text: "auto, cpu or cuda".
template <class T, size_t N>
std::string names_of(std::span<const Choice<T>, N> choices) {
  std::vector<std::string_view> names;
  for (const Choice<T>& choice : choices) {
    if (!choice.other_spelling) names.push_back(choice.name);
  }
  std::string text(names.front());
  for (size_t i = 1; i < names.size(); ++i) {
    text += i + 1 < names.size() ? ", " : " or ";
    text += names[i];
  }
  return text;
}

// Returns a suggestion for a misspelled strategy: "did you mean zero2? ". Returns an empty string
// for all other flags. Names of dtypes are similar but mean different things, so the nearest name
// would be a bad suggestion. The choices of other flags are few, and the error lists them.
template <class T, size_t N>
std::string did_you_mean(std::string_view value, std::span<const Choice<T>, N> choices) {
  if constexpr (!std::is_same_v<T, Strategy>) return {};
  std::vector<std::string> names;
  for (const Choice<T>& choice : choices) names.emplace_back(choice.name);
  const std::string nearest = nearest_of(value, names);
  return nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest);
}

inline std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

// Returns a flag that selects one of `choices`. `target` is a T or a std::optional<T>. The flag
// refers to `target` and to the elements of `choices`. Both must outlive the flag.
template <class Target, class T, size_t N>
RunFlag choice_flag(RunFlag flag, Target& target, std::span<const Choice<T>, N> choices) {
  const auto chosen =
      std::ranges::find_if(choices, [&](const Choice<T>& each) { return target == each.value; });
  if (chosen != choices.end()) flag.value = chosen->name;
  flag.set = [name = flag.name, &target, choices](std::string_view value) {
    // Upper and lower case are equal, so BF16 and Python's True are accepted.
    const auto found = std::ranges::find(choices, in_lower_case(value), &Choice<T>::name);
    if (found == choices.end())
      refuse_value(name, value, did_you_mean(value, choices) + "use " + names_of(choices));
    target = found->value;
  };
  return flag;
}

// Returns the number that `text` is. Errors: InvalidArgument (64) if it is not a number from
// `least` to `most`.
template <class Number>
Number read_number(std::string_view flag, std::string_view text, Number least, Number most,
                   std::string_view kind) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // A NaN is refused, because both comparisons are false for it.
  const bool in =
      error == std::errc() && end == text.data() + text.size() && number >= least && number <= most;
  if (!in) refuse_value(flag, text, fmt::format("use {} from {} to {}", kind, least, most));
  return number;
}

// Returns a flag whose value is a whole number from 0 to `most`.
template <class Integer>
RunFlag count_flag(const char* name, const char* meaning, Integer& count,
                   Integer most = 1'000'000) {
  return {.name = name,
          .value_name = "N",
          .meaning = meaning,
          .value = fmt::format("{}", count),
          .set = [name, &count, most](std::string_view value) {
            count = read_number<Integer>(name, value, 0, most, "a whole number");
          }};
}

// Returns the flag. `alone` is its value if the user writes the flag without a value.
inline RunFlag with_meaning_alone(RunFlag flag, std::string alone) {
  flag.alone = std::move(alone);
  return flag;
}

// Returns the flag with the value that --help shows if the option is unset.
inline RunFlag with_value_unset(RunFlag flag, std::string value) {
  if (flag.value.empty()) flag.value = std::move(value);
  return flag;
}

// Returns a flag whose value is a number from 0 to `most`.
inline RunFlag number_flag(const char* name, const char* meaning, double& number, double most) {
  return {.name = name,
          .value_name = "X",
          .meaning = meaning,
          .value = fmt::format("{}", number),
          .set = [name, &number, most](std::string_view value) {
            number = read_number(name, value, 0.0, most, "a number");
          }};
}

// Returns a flag that is true if it is given without a value.
template <class Target>
RunFlag switch_flag(const char* name, const char* meaning, Target& target) {
  return with_meaning_alone(choice_flag({.name = name, .value_name = "BOOL", .meaning = meaning},
                                        target, std::span(kBools)),
                            "true");
}

// Returns a flag whose value is a folder.
inline RunFlag folder_flag(const char* name, const char* meaning, std::filesystem::path& folder) {
  return {.name = name,
          .value_name = "DIR",
          .meaning = meaning,
          .value = folder.string(),
          .set = [name, &folder](std::string_view value) {
            if (value.empty()) refuse_value(name, value, "name a folder");
            folder = value;
          }};
}

}  // namespace fsdp
