// The format of texts in the store.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/failure.h"

namespace fsdp {

// The key of the job's failure. The first value that is set stays.
inline constexpr char kFailureKey[] = "failure";
std::string text_of(const Failure& failure);
Failure failure_of(const std::string& text);

// Splits `text` into `count` parts. Missing parts are empty.
std::vector<std::string> parts_of(std::string_view text, char between, size_t count);

// Returns the number in `text`, or 0 if `text` has no number.
template <class Number>
Number number_in(const std::string& text) {
  Number value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace fsdp
