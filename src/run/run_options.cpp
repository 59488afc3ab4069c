#include "fsdp/run_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/help_text.h"
#include "base/nearest.h"
#include "run/other_names.h"

namespace fsdp {
namespace {

// "--param_dtype=bf16" is {"--param-dtype", "bf16"}.
struct Word {
  explicit Word(std::string_view word)
      : name(word.substr(0, word.find('='))), has_value(name.size() < word.size()) {
    if (has_value) value = word.substr(name.size() + 1);
    std::ranges::replace(name, '_', '-');
  }

  std::string name;
  bool has_value;
  std::string value;
};

std::vector<RunFlag> flags_of(RunOptions& run, ProgramFlags program) {
  std::vector<RunFlag> flags = run.engine_flags();
  if (program.diagnostics) std::ranges::move(run.diagnostic_flags(), std::back_inserter(flags));
  if (program.plans) std::ranges::move(run.plan_flags(), std::back_inserter(flags));
  return flags;
}

}  // namespace

RunOptions RunOptions::parse(int argc, const char* const* argv, ProgramFlags program,
                             RunOptions defaults) {
  RunOptions run = std::move(defaults);
  const std::vector<RunFlag> flags = flags_of(run, program);
  for (int i = 1; i < argc; ++i) {
    const std::string_view given = argv[i];
    const Word word(given);
    const auto flag = std::ranges::find(flags, word.name, &RunFlag::name);
    if (flag != flags.end()) {
      const bool is_last = i + 1 == argc;
      const bool stands_alone =
          !word.has_value && (is_last || std::string_view(argv[i + 1]).starts_with("--"));
      if (stands_alone && !flag->alone.empty()) {
        flag->set(flag->alone);
        continue;
      }
      if (!word.has_value && is_last) {
        throw InvalidArgument(
            {.what = fmt::format("{} has no value", flag->name),
             .hint = fmt::format("{} {}: {}", flag->name, flag->value_name, flag->meaning)},
            ExitCode::kUsage);
      }
      flag->set(word.has_value ? std::string_view(word.value) : argv[++i]);
    } else if (program.others && given == "--") {
      run.rest.insert(run.rest.end(), argv + i, argv + argc);
      break;
    } else if (program.others) {
      run.rest.emplace_back(given);
    } else if (given == "--help" || given == "-h") {
      run.help = true;
      break;
    } else {
      run.refuse(given);
    }
  }
  return run;
}

std::string RunOptions::help_text(ProgramFlags program) const {
  RunOptions values = *this;  // the flags want one that they could change
  std::string text;
  for (const RunFlag& flag : flags_of(values, program)) {
    const std::string now = flag.value.empty() ? "" : fmt::format(" [{}]", flag.value);
    text += help_row(flag.name + " " + flag.value_name, flag.meaning + now);
  }
  return text;
}

void RunOptions::refuse(std::string_view word, const std::vector<std::string>& own) const {
  if (!word.starts_with('-')) {
    throw InvalidArgument({.what = fmt::format("'{}' stands where a flag is expected", word),
                           .hint = "--help lists the flags"},
                          ExitCode::kUsage);
  }
  RunOptions values = *this;
  std::vector<std::string> names = own;
  for (const RunFlag& flag : values.engine_flags()) names.push_back(flag.name);
  const std::string name = Word(word).name, here = name_here(name, names);
  const std::string nearest = here.empty() ? nearest_of(name, names) : "";
  std::string hint = "--help lists the flags";
  if (name == "--help") hint = "a program with flags of its own prints RunOptions::help_text there";
  if (!here.empty()) hint = fmt::format("here it is {}; ", here) + hint;
  if (!nearest.empty()) hint = fmt::format("did you mean {}? ", nearest) + hint;
  throw InvalidArgument({.what = fmt::format("there is no flag {}", word.substr(0, name.size())),
                         .hint = std::move(hint)},
                        ExitCode::kUsage);
}

}  // namespace fsdp
