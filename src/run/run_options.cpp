#include "fsdp/run_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/program_text.h"
#include "run/unknown_flags.h"

namespace fsdp {
namespace {

// A word of a command line: "--param_dtype=bf16" is {"--param-dtype", "bf16"}.
struct Word {
  explicit Word(std::string_view word)
      : name(with_hyphens(word.substr(0, word.find('=')))), has_value(name.size() < word.size()) {
    if (has_value) value = word.substr(name.size() + 1);
  }

  std::string name;
  bool has_value;
  std::string value;
};

// Returns the flags that the program accepts. They refer to `run`, which must outlive them.
std::vector<RunFlag> flags_of(RunOptions& run, ProgramFlags program) {
  std::vector<RunFlag> flags = run.engine_flags();
  const auto add = [&](std::vector<RunFlag> more) {
    std::ranges::move(more, std::back_inserter(flags));
  };
  if (program.diagnostics) add(run.diagnostic_flags());
  if (program.plans) add(run.plan_flags());
  if (program.trains) add(run.schedule_flags());
  if (program.evaluates) add(run.evaluation_flags());
  if (program.trains) add(run.report_flags());
  if (program.checkpoints) add(run.checkpoint_flags());
  return flags;
}

}  // namespace

RunOptions RunOptions::parse(int argc, const char* const* argv, ProgramFlags program,
                             RunOptions defaults) {
  RunOptions run = std::move(defaults);
  const std::vector<RunFlag> flags = flags_of(run, program);
  std::vector<std::string> unknown;
  for (int i = 1; i < argc; ++i) {
    const std::string_view given = argv[i];
    const Word word(given);
    const auto flag = std::ranges::find(flags, word.name, &RunFlag::name);
    if (flag != flags.end()) {
      const bool is_last = i + 1 == argc;
      // If the next word begins with two hyphens, it is a flag, so this flag has no value. One
      // hyphen may begin a value, such as a negative number.
      const bool stands_alone =
          !word.has_value && (is_last || std::string_view(argv[i + 1]).starts_with("--"));
      if (stands_alone && !flag->alone.empty()) {
        flag->set(flag->alone);
        continue;
      }
      if (stands_alone) {
        throw InvalidArgument(
            {.what = fmt::format("{} has no value", flag->name),
             .hint = fmt::format("use {} {}: {}", flag->name, flag->value_name, flag->meaning)},
            ExitCode::kUsage);
      }
      flag->set(word.has_value ? std::string_view(word.value) : argv[++i]);
    } else if (program.others && given == "--") {
      // The "--" is passed on, because it also ends the program's own flags.
      run.other_arguments.insert(run.other_arguments.end(), argv + i, argv + argc);
      break;
    } else if (program.others) {
      const bool is_flag = given.starts_with("--");
      // A flag is always passed on in the same form: its name with hyphens, followed by its value.
      run.other_arguments.push_back(is_flag ? word.name : std::string(given));
      if (is_flag && word.has_value) run.other_arguments.push_back(word.value);
    } else if (given == "--help" || given == "-h") {
      run.help = true;
      break;
    } else if (given.starts_with('-') || unknown.empty()) {
      // A word without hyphens after an unknown flag is the value of that flag. Without an unknown
      // flag before it, the word itself is reported.
      unknown.emplace_back(given);
    }
  }
  if (!unknown.empty() && !run.help) run.refuse(unknown);
  return run;
}

std::string RunOptions::help_text(ProgramFlags program) const {
  RunOptions values = *this;  // a copy, because flags refer to options that they can change
  std::string text;
  for (const RunFlag& flag : flags_of(values, program)) {
    const std::string now = flag.value.empty() ? "" : fmt::format(" [{}]", flag.value);
    text += help_row(flag.name + " " + flag.value_name, flag.meaning + now);
  }
  return text;
}

void RunOptions::refuse(const std::vector<std::string>& words, const std::vector<std::string>& own,
                        const std::map<std::string, std::string>& answers) const {
  RunOptions values = *this;
  KnownFlags known{.names = own, .answers = answers};
  for (const RunFlag& flag : values.engine_flags()) known.names.push_back(flag.name);
  refuse_unknown(words, known);
}

}  // namespace fsdp
