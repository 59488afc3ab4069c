// Parses the command line of a training program into the engine's options.
//
//   int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
//     fsdp::BuildScope building(mesh, run.engine);
//     …
//   }
//   int main(int argc, char** argv) { return fsdp::run_program(argc, argv, train); }
//
// A program that has its own flags can read them from RunOptions::other_arguments (examples/gpt),
// or can add the engine's flags to its own parser (examples/bert_qa).
#pragma once

#include <fsdp/checkpoint_options.h>
#include <fsdp/error.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/program.h>
#include <fsdp/training_options.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A flag with a value. The flag refers to the RunOptions object that it changes.
struct RunFlag {
  std::string name;        // "--prefetch"
  std::string value_name;  // "N"
  std::string meaning;
  std::string value;  // current value, as the user would type it; may be empty
  std::string alone;  // value if the user gives none; empty: the user must give one
  // Sets the value. Errors: InvalidArgument (64) if the value is not allowed. The error names the
  // flag, the value and the allowed values.
  std::function<void(std::string_view value)> set;
};

// Features of a program. Each feature adds flags or arguments that the program accepts.
struct ProgramFlags {
  // true: the program accepts --trace and --ablate. The program must write RunOptions::trace_file.
  // If --ablate is given, the program must print that the results of training without communication
  // are meaningless.
  bool diagnostics = false;
  // true: the program plans its step before it builds anything (plan_run). It accepts --force and
  // --log-level (RunOptions::force and log_level).
  bool plans = false;
  // true: the program saves and loads checkpoints (checkpoints.h) with RunOptions::checkpoints. It
  // accepts --save-steps, --resume and the other flags of CheckpointOptions.
  bool checkpoints = false;
  // true: the program sets its learning rate with RunOptions::schedule and reports with
  // RunOptions::reports. It accepts --lr-scheduler-type, --warmup-steps, --report-to and the other
  // flags of these options.
  bool trains = false;
  // true: the program evaluates during training with RunOptions::evaluation. It accepts
  // --eval-strategy and the other flags of EvaluationOptions.
  bool evaluates = false;
  // true: --help and the arguments that are not flags of the engine are put into
  // RunOptions::other_arguments. The program must refuse those that it does not know. Before the
  // argument "--", a name of an engine's flag always means the engine's flag, not the program's.
  bool others = false;
};

// Selects how a program prints the plan of its step.
enum class LogLevel : uint8_t {
  kInfo,   // one line: StepPlan::summary
  kDebug,  // tables: StepPlan::to_string, Engine::describe
};

struct RunOptions {
  MeshOptions mesh{.device = DeviceKind::kAuto};
  Options engine;               // for BuildScope or Engine
  bool names_strategy = false;  // --strategy was given; otherwise see choose_strategy (run_plan.h)
  CheckpointOptions checkpoints;  // for Checkpoints
  ScheduleOptions schedule;
  EvaluationOptions evaluation;  // for BestModel
  ReportOptions reports;
  std::filesystem::path trace_file;  // for Trace; empty: no trace
  // true: collectives of the engines transfer nothing and wait for no rank. The difference to the
  // step time of a normal run is the cost of communication. Results are meaningless.
  // Requires: ranks are processes.
  bool ablate_communication = false;
  // true: the run continues even if the plan exceeds the memory. This also sets
  // engine.try_beyond_plan.
  bool force = false;
  LogLevel log_level = LogLevel::kInfo;
  bool help = false;  // --help was given: print help_text() and do nothing else
  // The arguments that are not flags of the engine, in order. --a_b=c becomes two arguments, --a-b
  // and c.
  std::vector<std::string> other_arguments;

  // Returns `defaults`, changed by the flags of a command line. A flag is written `--flag value` or
  // `--flag=value`, with hyphens or underscores. If a flag is repeated, the last one counts. A flag
  // with a default value (RunFlag::alone) needs no value if it is the last argument or another flag
  // follows: `--offload`.
  // Errors: InvalidArgument (64) if a flag is unknown (refuse()), a flag has no value, or a value
  //   is not allowed.
  static RunOptions parse(int argc, const char* const* argv, ProgramFlags program,
                          RunOptions defaults);
  static RunOptions parse(int argc, const char* const* argv, ProgramFlags program = {}) {
    return parse(argc, argv, program, {});
  }

  // Return the flags, for use in other parsers. The flags refer to this RunOptions object, so it
  // must outlive the flags.
  std::vector<RunFlag> engine_flags();
  std::vector<RunFlag> diagnostic_flags();
  std::vector<RunFlag> plan_flags();
  std::vector<RunFlag> checkpoint_flags();
  std::vector<RunFlag> schedule_flags();
  std::vector<RunFlag> evaluation_flags();
  std::vector<RunFlag> report_flags();

  // Returns one line per flag, with the flag's current value.
  std::string help_text(ProgramFlags program = {}) const;

  // Throws InvalidArgument (64) that names all of `words`: arguments that neither the engine nor
  // the program knows. `own` are the program's flags. If a word is a flag of another program (such
  // as Hugging Face's), the hint names the equivalent flag, or says that there is none. `answers`
  // maps words to the program's own hints.
  // Requires: `words` is not empty. A word that is not a flag counts as the value of the flag
  //   before it.
  [[noreturn]] void refuse(const std::vector<std::string>& words,
                           const std::vector<std::string>& own = {},
                           const std::map<std::string, std::string>& answers = {}) const;
};

// Runs a program like run_program of program.h, but the mesh is made with the options in `run`.
int run_program(const ProgramBody& body, const RunOptions& run);

using RunBody = std::function<int(const Mesh& mesh, const RunOptions& run, ErrorPlace& place)>;

// Runs a program like run_program of program.h, but with the options of the command line. For
// --help, rank 0 prints the help and the program ends with 0, unless program.others is set. An
// invalid command line ends all ranks with exit code 64 and one message.
int run_program(int argc, const char* const* argv, const RunBody& body, ProgramFlags program = {},
                RunOptions defaults = {});

}  // namespace fsdp
