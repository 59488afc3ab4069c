// Looks up presets of a model in a table. Each row has a `name`.
#pragma once

#include <fsdp/error.h>

#include <algorithm>
#include <iterator>
#include <string>

namespace presets {

// Returns the names, separated by commas.
template <class Table>
std::string names_of(const Table& table) {
  std::string names;
  for (const auto& preset : table) names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

// Returns the row with this name. Errors: InvalidArgument kUsage, which names all rows.
template <class Table>
const auto& find(const Table& table, const std::string& name) {
  const auto preset = std::find_if(std::begin(table), std::end(table),
                                   [&](const auto& each) { return each.name == name; });
  if (preset != std::end(table)) return *preset;
  throw fsdp::InvalidArgument(
      {.what = "there is no preset '" + name + "'", .hint = "choose from " + names_of(table)},
      fsdp::ExitCode::kUsage);
}

}  // namespace presets
