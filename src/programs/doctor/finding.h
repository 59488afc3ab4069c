// What fsdp-doctor says about a machine, as lines for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::doctor {

enum class State : uint8_t {
  kOk,
  kNote,   // runs work; not all of them, or not as fast as they could
  kFails,  // runs fail
};
std::string_view name_of(State state);

struct Finding {
  std::string area;  // what was looked at, in a word or two: "driver", "cuda:0"
  State state = State::kOk;
  std::string text;
  std::string remedy{};  // what the reader can do; empty exactly where the state is kOk
};
inline Finding note(std::string area, std::string text, std::string_view remedy) {
  return {std::move(area), State::kNote, std::move(text), std::string(remedy)};
}
inline Finding failing(std::string area, std::string text, std::string_view remedy) {
  return {std::move(area), State::kFails, std::move(text), std::string(remedy)};
}

// A line each: area, state, text. No line is longer than 100 columns: what does not fit goes on
// below the text, where the remedy stands, too. Control characters are escaped, whoever wrote them.
std::string format_findings(const std::vector<Finding>& findings);

}  // namespace fsdp::doctor
