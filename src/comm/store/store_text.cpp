#include "comm/store/store_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

constexpr char kBreak = '\x1f';  // separates the fields of a failure

}  // namespace

std::string text_of(const Failure& failure) {
  const auto& [what, where, cause, hint] = failure.text;
  return fmt::format("{1}{0}{2}{0}{3}{0}{4}{0}{5}{0}{6}", kBreak, failure.rank,
                     static_cast<int>(failure.code), what, where, cause, hint);
}

Failure failure_of(const std::string& text) {
  std::vector<std::string> parts = parts_of(text, kBreak, 6);
  return {.rank = number_in<int>(parts[0]),
          .code = static_cast<ExitCode>(number_in<int>(parts[1])),
          .text = {.what = std::move(parts[2]),
                   .where = std::move(parts[3]),
                   .cause = std::move(parts[4]),
                   .hint = std::move(parts[5])}};
}

std::vector<std::string> parts_of(std::string_view text, char between, size_t count) {
  std::vector<std::string> parts;
  // The condition is <=, so that an empty text, or one that ends with `between`, has an empty last
  // part.
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(between, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.resize(count);
  return parts;
}

}  // namespace fsdp
