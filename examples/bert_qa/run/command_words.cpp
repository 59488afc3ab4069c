#include "bert_qa/run/command_words.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace bert_qa {
namespace {

// Refuses empty words. CLI11 would take an empty word for the name of a group of flags and loop
// forever.
void refuse_empty_words(const std::vector<std::string>& arguments) {
  const auto empty = std::ranges::find(arguments, "");
  if (empty == arguments.end()) return;
  throw fsdp::InvalidArgument(
      {.what = empty == arguments.begin()
                   ? "the first argument is empty"
                   : fmt::format("the argument after {} is empty", *std::prev(empty)),
       .hint =
           "leave the argument out; a quoted shell variable that is unset gives an empty argument"},
      fsdp::ExitCode::kUsage);
}

}  // namespace

// Changes --train_file=a_b to --train-file=a_b. Values are not changed.
std::vector<std::string> command_words(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const auto end = argument.begin() + std::min(argument.find('='), argument.size());
    std::replace(argument.begin(), end, '_', '-');
  }
  refuse_empty_words(arguments);
  return arguments;
}

void refuse_flags_as_values(CLI::App& app) {
  const CLI::Validator is_no_flag(
      [](std::string& value) {
        return value.starts_with("--") ? fmt::format("expected a value, got {}", value) : "";
      },
      "");
  for (CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_items_expected_max() > 0) option->check(is_no_flag);
  }
  for (CLI::App* group : app.get_subcommands([](const CLI::App*) { return true; })) {
    refuse_flags_as_values(*group);
  }
}

}  // namespace bert_qa
