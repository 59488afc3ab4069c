// Parses command lines of fsdp-plan in tests, and looks at its texts.
#pragma once

#include <fsdp/error.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planning/command_line.h"
#include "planning/plan_search.h"
#include "planning/plan_table.h"

namespace fsdp::testing {

inline planning::PlanSettings settings_of(std::vector<const char*> words) {
  words.insert(words.begin(), "fsdp-plan");
  return planning::parse_command_line(static_cast<int>(words.size()), words.data());
}

// Returns the exit code and the text of the error that `body` throws.
inline std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "no error";
}

// Returns the parameters of a preset or a folder.
inline int64_t parameters_of(const std::string& model) {
  const planning::PlanSettings settings =
      settings_of({"--model", model.c_str(), "--ranks", "8", "--seq-len", "8"});
  planning::Planners planners(planning::find_model(model), settings.batch.length);
  return planning::PlanSearch(settings, planners).plan().parameters;
}

inline std::vector<planning::TableRow> rows_of(const planning::PlanSettings& settings) {
  planning::Planners planners(planning::find_model(settings.model), settings.batch.length);
  return planning::plan_rows(settings, planners);
}

inline bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace fsdp::testing
