// Parses the command line of a training program: the engine's options.
//
//   int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
//     fsdp::BuildScope building(mesh, run.engine);
//     …
//   }
//   int main(int argc, char** argv) { return fsdp::run_program(argc, argv, train); }
//
// A program with flags of its own reads them from RunOptions::other_arguments (examples/gpt), or
// adds the engine's flags to its own parser (examples/bert_qa).
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/program.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A flag with a value, bound to the RunOptions that it changes.
struct RunFlag {
  std::string name;        // "--prefetch"
  std::string value_name;  // "N"
  std::string meaning;
  std::string value;  // current value, as one would type it; empty: none
  std::string alone;  // value of the flag without a value; empty: it needs one
  // Errors: InvalidArgument (64) that names flag, value and allowed values.
  std::function<void(std::string_view value)> set;
};

// Features of a program, which decide the flags and words that it accepts.
struct ProgramFlags {
  // true: the program accepts --trace and --ablate. It writes RunOptions::trace_file, and says that
  // a run without communication learns nothing.
  bool diagnostics = false;
  // true: the program plans its step before it builds anything (plan_run), and accepts --force and
  // --log-level: RunOptions::force, log_level.
  bool plans = false;
  // true: words that are no flags of the engine, and --help, are in RunOptions::other_arguments;
  // the program refuses those it does not know. A word spelled as a flag of the engine is that
  // flag, up to "--".
  bool others = false;
};

// Selects how a program prints the plan of its step.
enum class LogLevel : uint8_t {
  kInfo,   // a line: StepPlan::summary
  kDebug,  // tables: StepPlan::to_string, Engine::describe
};

struct RunOptions {
  MeshOptions mesh{.device = DeviceKind::kAuto};
  Options engine;                    // for BuildScope or Engine
  std::filesystem::path trace_file;  // for Trace; empty: no trace
  // true: the engines' collectives move nothing and wait for no rank, so the time of a step shows
  // the cost of communication. Results are meaningless. Requires: ranks are processes.
  bool ablate_communication = false;
  // true: go on if the plan does not fit; sets engine.try_beyond_plan too.
  bool force = false;
  LogLevel log_level = LogLevel::kInfo;
  bool help = false;  // --help was given: print help_text() and do nothing else
  // Words that are no flags of the engine, in order; --a_b=c is two words, --a-b and c.
  std::vector<std::string> other_arguments;

  // Returns `defaults` changed by the flags of a command line: `--flag value` or `--flag=value`,
  // with hyphens or underscores. The last of repeated flags counts. A switch may have no value if
  // it is last or another flag follows: `--offload`.
  // Errors: InvalidArgument (64) for unknown flags (refuse()), a flag without a value, or a value
  //   that is not allowed.
  static RunOptions parse(int argc, const char* const* argv, ProgramFlags program,
                          RunOptions defaults);
  static RunOptions parse(int argc, const char* const* argv, ProgramFlags program = {}) {
    return parse(argc, argv, program, {});
  }

  // Return flags for other parsers. Lifetime: the flags refer to this object.
  std::vector<RunFlag> engine_flags();
  std::vector<RunFlag> diagnostic_flags();
  std::vector<RunFlag> plan_flags();

  // Returns a line per flag with its current value.
  std::string help_text(ProgramFlags program = {}) const;

  // Throws InvalidArgument (64) that names all of `words`, which neither the engine nor the program
  // knows. `own` are the program's flags. For a flag of another program (Hugging Face's and others)
  // the hint names the flag here, or says that there is none; `answers` are hints of the program's
  // own.
  // Requires: at least one word. A word that is no flag is the value of the one before it.
  [[noreturn]] void refuse(const std::vector<std::string>& words,
                           const std::vector<std::string>& own = {},
                           const std::map<std::string, std::string>& answers = {}) const;
};

// Runs a program as run_program of program.h, on the mesh that `run` describes.
int run_program(const ProgramBody& body, const RunOptions& run);

using RunBody = std::function<int(const Mesh& mesh, const RunOptions& run, ErrorPlace& place)>;

// Runs a program as run_program of program.h, with the options of the command line. Rank 0 prints
// --help, and the program ends with 0, unless it takes `others`. An invalid command line ends all
// ranks with 64 and one message.
int run_program(int argc, const char* const* argv, const RunBody& body, ProgramFlags program = {},
                RunOptions defaults = {});

}  // namespace fsdp
