// Defines the findings of fsdp-doctor and formats them as lines for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::doctor {

enum class State : uint8_t {
  kOk,
  kNote,   // some runs do not work, or not at full speed
  kFails,  // runs fail
};
std::string_view name_of(State state);

// The result of one check.
struct Finding {
  std::string area;  // one or two words for the checked thing: "driver", "cuda:0"
  State state = State::kOk;
  std::string text;
  std::string remedy{};  // an instruction for the reader; empty if and only if the state is kOk
};
inline Finding note(std::string area, std::string text, std::string_view remedy) {
  return {std::move(area), State::kNote, std::move(text), std::string(remedy)};
}
inline Finding failing(std::string area, std::string text, std::string_view remedy) {
  return {std::move(area), State::kFails, std::move(text), std::string(remedy)};
}

// Returns a line for each finding, with its area, state and text. Text beyond 100 columns is
// wrapped to further lines. The remedy follows on the next line. Control characters are escaped.
std::string format_findings(const std::vector<Finding>& findings);

}  // namespace fsdp::doctor
