// fsdp-rates [--ranks N] measures this machine and prints a rates file for fsdp-plan --time. With
// --model it also measures the operators of that model's step. With several ranks it becomes
// fsdp-run, which starts this program once for each rank.
//
// Exit codes: 0; 64 wrong usage; 65, 74 the configuration of a folder is wrong or cannot be read;
// 74 the rates cannot be written; otherwise those of fsdp-run.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/measured_rates.h>
#include <fsdp/program.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "planning/known_model.h"
#include "planning/plan_search.h"
#include "programs/command_line.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"

namespace {

// The parsed command line.
struct Command {
  int ranks = 1;
  int threads = 0;  // 0: the cores divided by the ranks
  double seconds = 20;
  c10::ScalarType dtype = c10::ScalarType::Float;
  fsdp::DeviceKind device = fsdp::DeviceKind::kCpu;
  std::string model;
  planning::BatchShape batch;
};

c10::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return c10::ScalarType::Float;
  if (name == "bfloat16") return c10::ScalarType::BFloat16;
  if (name == "float16") return c10::ScalarType::Half;
  fsdp::refuse_usage(fmt::format("--param-dtype cannot be '{}'", name),
                     "use float32, bfloat16 or float16");
}

fsdp::DeviceKind device_of(const std::string& name) {
  if (name == "cpu") return fsdp::DeviceKind::kCpu;
  if (name == "cuda") return fsdp::DeviceKind::kCuda;
  fsdp::refuse_usage(fmt::format("--device cannot be '{}'", name), "use cpu or cuda");
}

// Returns the command. For --help, prints the help and returns nothing.
std::optional<Command> parse(int argc, char** argv) {
  CLI::App app(
      "Measures this machine in about a minute and prints a rates file for fsdp-plan --time.\n"
      "Nothing else should run meanwhile.",
      "fsdp-rates");
  Command command;
  std::string dtype = "float32", device = "cpu";
  constexpr int kMost = 1024;
  app.add_option("--ranks", command.ranks, "ranks of this host, which measure at the same time [1]")
      ->check(CLI::Range(1, kMost).description(""))
      ->type_name("N");
  app.add_option("--threads", command.threads,
                 "LibTorch's threads in each rank [the cores divided by the ranks]")
      ->check(CLI::Range(1, kMost).description(""))
      ->type_name("N");
  app.add_option("--param-dtype", dtype, "type of products, besides float32 [float32]")
      ->type_name("NAME");
  app.add_option("--device", device, "cpu or cuda [cpu]")->type_name("NAME");
  app.add_option("--seconds", command.seconds, "time for measurements of the device [20]")
      ->check(CLI::Range(0.1, 3600.0).description(""))
      ->type_name("N");
  app.add_option("--model", command.model,
                 "also measure the operators of this model's step (a preset or a folder, as for "
                 "fsdp-plan)")
      ->type_name("NAME");
  app.add_option("--batch", command.batch.sequences, "sequences of a rank in a step [1]")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N");
  app.add_option("--seq-len", command.batch.length, "tokens of a sequence [as for fsdp-plan]")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N");
  app.footer("Exit codes: 0, 64 usage, 65 or 74 a folder or the output; else those of fsdp-run.");
  if (!fsdp::parse_or_help(app, argc, argv, "see fsdp-rates --help")) return std::nullopt;
  command.dtype = dtype_of(dtype);
  command.device = device_of(device);
  const bool has_shape = command.batch.sequences > 1 || command.batch.length > 0;
  if (command.model.empty() && has_shape) {
    fsdp::refuse_usage("--batch and --seq-len need a model", "add --model NAME");
  }
  return command;
}

// Replaces this process by fsdp-run, which is in the same folder.
[[noreturn]] void start_ranks(const Command& command, int argc, char** argv) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string launcher = (self.parent_path() / "fsdp-run").string();
  std::vector<std::string> words = {launcher, "-n", std::to_string(command.ranks), "--",
                                    self.string()};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(launcher.c_str(), pointers.data());
  throw fsdp::InvalidArgument({.what = fmt::format("{} cannot be started", launcher),
                               .where = "fsdp-rates",
                               .cause = std::generic_category().message(errno),
                               .hint = "install fsdp-run in the folder of fsdp-rates"});
}

// Returns the operators of a step. They do not depend on the number of ranks.
fsdp::PlayedOperators operators_of(const Command& command, const fsdp::Mesh& mesh) {
  const planning::KnownModel model = planning::find_model(command.model);
  planning::BatchShape batch = command.batch;
  if (batch.length == 0) batch.length = model.usual.length;
  fsdp::PlanRequest request{.ranks = mesh.world_size(), .mesh = {.device = command.device}};
  request.options.unit_options = model.unit_options;
  if (command.dtype != c10::ScalarType::Float) {
    request.options.mixed_precision.param_dtype = command.dtype;
  }
  return planning::Planners(model, batch.length).of(batch.sequences).operators(request);
}

void note_failures(const fsdp::PlayedOperators& operators, const fsdp::Mesh& mesh) {
  for (const auto& [key, error] : operators.failures()) {
    mesh.note(fmt::format("{} was not measured, because it failed alone: {}", key,
                          error.substr(0, error.find('\n'))));
  }
}

int measure(const Command& command, const fsdp::Mesh& mesh) {
  if (command.ranks > 1 && command.ranks != mesh.world_size()) {
    fsdp::refuse_usage(fmt::format("--ranks is {}, but the launcher started {} ranks",
                                   command.ranks, mesh.world_size()),
                       "start fsdp-rates without a launcher, or leave out --ranks");
  }
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  at::set_num_threads(command.threads > 0 ? command.threads
                                          : std::max(1, cores / mesh.world_size()));
  fsdp::MeasureOptions options{.seconds = command.seconds};
  if (command.dtype != options.dtypes.front()) options.dtypes.push_back(command.dtype);
  std::optional<fsdp::PlayedOperators> operators;
  if (!command.model.empty()) operators = operators_of(command, mesh);
  const fsdp::Rates rates = fsdp::measured_rates(mesh, options, operators ? &*operators : nullptr);
  if (mesh.rank() == 0) {
    if (operators) note_failures(*operators, mesh);
    fsdp::print_all("rates", fsdp::to_json(rates));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<Command> command;
  const int code = fsdp::run_alone([&] {
    command = parse(argc, argv);
    const bool is_launched = std::getenv("WORLD_SIZE") != nullptr;
    if (command && command->ranks > 1 && !is_launched) start_ranks(*command, argc, argv);
  });
  if (code != 0 || !command) return code;
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) { return measure(*command, mesh); },
      {.device = command->device});
}
