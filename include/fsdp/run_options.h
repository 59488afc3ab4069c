// The command line of a training program: what its user chooses of the engine.
//
//   int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
//     fsdp::BuildScope building(mesh, run.engine);
//     …
//   }
//   int main(int argc, char** argv) { return fsdp::run_program(argc, argv, train); }
//
// A program with flags of its own reads them from RunOptions::other_arguments (examples/gpt), or adds these to
// a parser that it has (examples/bert_qa).
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
  std::string value;  // what is chosen now, as one would type it; empty: nothing
  std::string alone;  // what the flag means without a value; empty: it needs one
  // Errors: InvalidArgument (64) naming flag and value, with what is allowed.
  std::function<void(std::string_view value)> set;
};

// What a program does with words that are no flag of the engine; each is refused otherwise.
struct ProgramFlags {
  // It serves --trace and --ablate: writes RunOptions::trace_file, and says of a run without
  // communication that it learned nothing.
  bool diagnostics = false;
  // It plans its step before it builds anything (plan_run), and serves --force and --log-level:
  // RunOptions::force, log_level.
  bool plans = false;
  // It reads RunOptions::other_arguments, which has --help too, and refuses there what it does not know. A
  // word that is spelled as one of the engine's flags is taken for it; "--" ends them.
  bool others = false;
};

// How a program says what its step takes.
enum class LogLevel : uint8_t {
  kInfo,   // in a line: StepPlan::summary
  kDebug,  // in tables: StepPlan::to_string, Engine::describe
};

struct RunOptions {
  MeshOptions mesh{.device = DeviceKind::kAuto};
  Options engine;                    // for BuildScope or Engine
  std::filesystem::path trace_file;  // for Trace; empty: none was asked for
  // Engines' collectives move nothing and wait for no rank, so that the time of a step shows what
  // communication costs; results are meaningless. Of ranks that are processes.
  bool ablate_communication = false;
  // Go on where the plan says that a step cannot fit: engine.try_beyond_plan, too.
  bool force = false;
  LogLevel log_level = LogLevel::kInfo;
  bool help = false;  // --help was given: print help(), do nothing else
  std::vector<std::string>
      other_arguments;  // what was left, in order; --a_b=c is two words, --a-b and c

  // `defaults`, changed by the flags of a command line: `--flag value` or `--flag=value`, with
  // hyphens or underscores; of a flag given twice the last one counts. What can be switched on may
  // stand alone, before another flag or last: `--offload`.
  // Errors: InvalidArgument (64): flags that do not exist (refuse()); a flag without a value; a
  //   value that is not allowed.
  static RunOptions parse(int argc, const char* const* argv, ProgramFlags program,
                          RunOptions defaults);
  static RunOptions parse(int argc, const char* const* argv, ProgramFlags program = {}) {
    return parse(argc, argv, program, {});
  }

  // The flags, for other parsers. Lifetime: they change this object where it stands.
  std::vector<RunFlag> engine_flags();
  std::vector<RunFlag> diagnostic_flags();
  std::vector<RunFlag> plan_flags();

  // A line a flag, with its value now.
  std::string help_text(ProgramFlags program = {}) const;

  // Throws InvalidArgument (64) that names all of `words`, which neither the engine nor the program
  // knows; the program's flags are `own`. Flags of other programs, Hugging Face's among them, have
  // their name here in the hint, or that there is none; `answers` are the program's own hints.
  // Requires: at least one word. A word that is no flag is the value of the one before it.
  [[noreturn]] void refuse(const std::vector<std::string>& words,
                           const std::vector<std::string>& own = {},
                           const std::map<std::string, std::string>& answers = {}) const;
};

// As run_program of program.h, on the mesh that `run` asks for.
int run_program(const ProgramBody& body, const RunOptions& run);

using RunBody = std::function<int(const Mesh& mesh, const RunOptions& run, ErrorPlace& place)>;

// As run_program of program.h, with what the command line says. --help is printed by rank 0 and
// ends with 0, unless the program takes `others`. What is wrong with a command line ends all ranks
// with 64, and one of them says it.
int run_program(int argc, const char* const* argv, const RunBody& body, ProgramFlags program = {},
                RunOptions defaults = {});

}  // namespace fsdp
