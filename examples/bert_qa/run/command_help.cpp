#include "bert_qa/run/command_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/program_text.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace bert_qa {
namespace {

// Returns "N" for "INT:INT in [8 - 1048576]". The range is printed only in the error for a wrong
// value.
std::string value_name(const CLI::Option& option) {
  const std::map<std::string, std::string> names = {
      {"INT", "N"}, {"UINT", "N"}, {"FLOAT", "X"}, {"TEXT", "NAME"}};
  const std::string type = option.get_type_name();
  const std::string name = type.substr(0, type.find(':'));
  const auto found = names.find(name);
  return found != names.end() ? found->second : name;
}

std::string row_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  std::string flag = fmt::format("{}", fmt::join(names, ", "));
  if (option.get_items_expected_max() > 0) flag += " " + value_name(option);
  const std::string value = option.get_default_str();
  return fsdp::help_row(
      flag, option.get_description() + (value.empty() ? "" : fmt::format(" [{}]", value)));
}

std::string rows_of(const CLI::App& group) {
  std::string rows;
  for (const CLI::Option* option : group.get_options()) {
    // A group of flags is an app without a name, and it has its own --help. That --help is not
    // listed again.
    const bool again = group.get_name().empty() && option == group.get_help_ptr();
    if (!again) rows += row_of(*option);
  }
  return rows;
}

const auto kAll = [](const CLI::App*) { return true; };

}  // namespace

std::string help_of(const CLI::App& app) {
  std::string groups, commands;
  for (const CLI::App* each : app.get_subcommands(kAll)) {
    if (each->get_name().empty()) {  // a group of flags
      groups += fmt::format("\n{}:\n{}", each->get_group(), rows_of(*each));
    } else {
      commands += fsdp::help_row(each->get_name(), each->get_description());
    }
  }
  const bool whole = !commands.empty();
  return fmt::format("usage: bert_qa {}\n\n{}\n\n{}{}{}\n{}{}",
                     whole ? "COMMAND [FLAGS]" : app.get_name() + " [FLAGS]", app.get_description(),
                     commands, whole ? "" : rows_of(app), groups,
                     whole ? "bert_qa COMMAND --help lists its flags.\n" : "",
                     fsdp::exit_codes_help());
}

}  // namespace bert_qa
