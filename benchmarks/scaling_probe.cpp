// Measures the memory of one rank while a model trains: engine buffers and LibTorch's tensors by
// phase (planned and measured), the bytes sent, and the system's figures for the process.
// benchmarks/memory_scaling starts it, watches the processes from outside, and checks the results.
// Rank 0 prints one JSON object.
//   fsdp-run -n 4 scaling_probe --model bert-base [--batch 1] [--seq-len 128] [--steps 4] [FLAGS]
//   scaling_probe --model bert-base --planned-ranks 2x4      only the plan, of two groups of four
//                                                            processes of one host
//   scaling_probe --model bert-base --simulated-ranks 1024   rank 0 with simulated peers
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/fsdp.h>
#include <fsdp/run_plan.h>
#include <malloc.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planning/known_model.h"
#include "tests/support/simulated_mesh.h"

namespace {

using fsdp::MemoryBytes;
using fsdp::Mesh;

// A memory limit that is never reached. LibTorch's bytes are counted only if there is a limit.
constexpr int64_t kUnreached = int64_t{1} << 50;

// The planned or simulated ranks. 0 means the real ranks.
struct ImaginedRanks {
  int64_t groups = 0, of_group = 0;
  int64_t count() const { return groups * of_group; }
};

// The parsed command line.
struct Settings {
  std::string model;
  planning::BatchShape batch{.sequences = 1, .length = 128};
  int64_t steps = 4;
  ImaginedRanks planned, simulated;
  fsdp::RunOptions run;
};

// Bytes in one phase of a step.
struct Phase {
  MemoryBytes engine;
  int64_t torch = 0;
};

constexpr std::array kPhases{"rest", "forward peak", "after forward", "backward peak",
                             "after backward"};

// Bytes of one rank, planned or measured.
struct Bytes {
  std::array<Phase, kPhases.size()> phases;
  int64_t engine_held = 0;
  int64_t torch_peak = 0, device_peak = 0;
  int64_t host = 0;  // held on the host with cpu_offload
  int64_t sent = 0;  // in a step
};

// The measurements of a training. The sizes are those of the largest rank.
struct Measured {
  Bytes bytes;
  int64_t resident_before = 0, resident_built = 0, resident_peak = 0;
  int64_t building_peak = 0;  // growth of the resident set while the model was built
  std::vector<double> step_ms, losses;
  double exposed_ms = 0;  // of a step
};

[[noreturn]] void refuse(std::string what, std::string hint) {
  throw fsdp::InvalidArgument({.what = std::move(what), .hint = std::move(hint)},
                              fsdp::ExitCode::kUsage);
}

constexpr int64_t kMost = 1 << 20;

int64_t read_count(const std::string& flag, std::string_view text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc() && rest == end && count >= 1 && count <= kMost) return count;
  refuse(fmt::format("{} cannot be '{}'", flag, text),
         fmt::format("use a whole number from 1 to {}", kMost));
}

// Reads "8", or "2x4": two groups of four.
ImaginedRanks read_ranks(const std::string& flag, std::string_view text) {
  const size_t by = text.find('x');
  const bool grouped = by != std::string_view::npos;
  const ImaginedRanks ranks{.groups = grouped ? read_count(flag, text.substr(0, by)) : 1,
                            .of_group = read_count(flag, text.substr(grouped ? by + 1 : 0))};
  if (ranks.count() <= kMost) return ranks;
  refuse(fmt::format("{} cannot be '{}'", flag, text),
         fmt::format("use at most {} ranks in all", kMost));
}

void read_word(Settings& settings, const std::string& flag, const std::string& value) {
  if (flag == "--model") settings.model = value;
  if (flag == "--batch") settings.batch.sequences = read_count(flag, value);
  if (flag == "--seq-len") settings.batch.length = read_count(flag, value);
  if (flag == "--steps") settings.steps = read_count(flag, value);
  if (flag == "--planned-ranks") settings.planned = read_ranks(flag, value);
  if (flag == "--simulated-ranks") settings.simulated = read_ranks(flag, value);
}

Settings read_command_line(const fsdp::RunOptions& run) {
  const std::vector<std::string> flags{"--model", "--batch",         "--seq-len",
                                       "--steps", "--planned-ranks", "--simulated-ranks"};
  Settings settings{.run = run};
  for (size_t i = 0; i < run.other_arguments.size(); i += 2) {
    const std::string& flag = run.other_arguments[i];
    if (std::ranges::find(flags, flag) == flags.end()) run.refuse({flag}, flags);
    if (i + 1 == run.other_arguments.size())
      refuse(flag + " has no value", "use " + flag + " VALUE");
    read_word(settings, flag, run.other_arguments[i + 1]);
  }
  if (settings.model.empty()) refuse("no model is given", "add --model bert-base");
  if (settings.steps < 2)
    refuse("--steps cannot be 1", "use 2 or more: the second step is the first steady one");
  if (settings.planned.count() > 0 && settings.simulated.count() > 0) {
    refuse("--planned-ranks and --simulated-ranks exclude each other", "use one of them");
  }
  return settings;
}

void check_shape(const Settings& settings, const planning::KnownModel& model, int real_ranks) {
  if (settings.batch.length > model.longest) {
    refuse(fmt::format("--seq-len cannot be {}", settings.batch.length),
           fmt::format("use at most {1}, the longest sequence of {0}", model.name, model.longest));
  }
  if (settings.planned.count() + settings.simulated.count() > 0 && real_ranks > 1) {
    refuse("--planned-ranks and --simulated-ranks need a job of one real rank",
           "start scaling_probe without fsdp-run");
  }
}

// Returns the process's own memory by proportional set size. If n processes share a page, it counts
// 1/n in each of them, so the figures of ranks can be added. Pages of files (libraries) are left
// out, because their share depends on other processes that use them.
int64_t resident_bytes() {
  int64_t bytes = 0;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    if (!line.starts_with("Pss_Anon:") && !line.starts_with("Pss_Shmem:")) continue;
    bytes += std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return bytes;
}

// Returns "VmRSS", or "VmHWM", which is the peak since forget_highest_resident().
int64_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// Returns the peak of resident_bytes. The kernel records the peak of all resident pages. Pages of
// files and of peers stay resident until the end, so they can be subtracted at this point.
int64_t highest_resident_bytes() {
  int64_t shared = 0;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    if (line.starts_with("Pss_Shmem:")) shared = std::stoll(line.substr(10)) * 1024;
  }
  return status_bytes("VmHWM") - status_bytes("RssFile") - status_bytes("RssShmem") + shared;
}

// Resets the kernel's peak of resident pages (proc(5)).
void forget_highest_resident() { std::ofstream("/proc/self/clear_refs") << 5; }

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

Bytes planned_bytes(const fsdp::StepPlan& plan) {
  const fsdp::MemoryPlan& engine = plan.memory;
  const fsdp::TorchMemoryPlan& torch = plan.torch;
  return {.phases = {Phase{engine.rest, torch.rest},
                     {engine.forward_peak, torch.forward_peak},
                     {engine.after_forward, torch.after_forward},
                     {engine.backward_peak, torch.backward_peak},
                     {engine.after_backward, torch.rest}},
          .engine_held = engine.held_bytes,
          .torch_peak = std::max(torch.forward_peak, torch.backward_peak),
          .device_peak = plan.peak_bytes(),
          .host = engine.host_held_bytes,
          .sent = plan.traffic.total_bytes()};
}

// A training that runs step by step. It records the last step's bytes in each phase and the
// peaks of all steps.
class Training {
 public:
  Training(const Mesh& mesh, fsdp::Engine& engine, planning::BlankModel& model)
      : mesh_(mesh), engine_(engine), model_(model), optimizer_(engine, {.lr = 1e-4}) {}

  void step(Measured& measured) {
    const auto began = std::chrono::steady_clock::now();
    const int64_t sent_before = engine_.stats().sent.total_bytes();
    Bytes& bytes = measured.bytes;
    bytes.torch_peak = 0;
    note(bytes, 0, /*peak=*/false);
    at::Tensor loss = model_.loss();
    note(bytes, 1, /*peak=*/true);
    note(bytes, 2, /*peak=*/false);
    loss.backward();
    measured.losses.push_back(loss.item<double>());
    loss = at::Tensor();
    note(bytes, 3, /*peak=*/true);
    note(bytes, 4, /*peak=*/false);
    optimizer_.clip_grad_norm(1.0);
    optimizer_.step();
    optimizer_.zero_grad();
    bytes.sent = engine_.stats().sent.total_bytes() - sent_before;
    measured.step_ms.push_back(milliseconds_since(began));
    const fsdp::MemoryStats memory = engine_.stats().memory;
    bytes.device_peak = std::max(bytes.device_peak, most(memory.device_peak));
    bytes.engine_held = most(memory.held_bytes);
    bytes.host = most(memory.host_held_bytes);
  }

  void trace_step(Measured& measured, const std::filesystem::path& file) {
    const fsdp::Trace trace(engine_);
    step(measured);
    trace.write(file);
  }

 private:
  int64_t most(int64_t value) const { return mesh_.max(value); }

  // Records a phase. It records a peak, or the current bytes, from which the next peak counts.
  void note(Bytes& bytes, size_t phase, bool peak) {
    const fsdp::MemoryStats memory = engine_.stats().memory;
    bytes.device_peak = std::max(bytes.device_peak, memory.device_peak);
    if (peak) bytes.torch_peak = std::max(bytes.torch_peak, memory.torch_peak);
    bytes.phases[phase] = {.engine = peak ? memory.peak : memory.in_use,
                           .torch = peak ? memory.torch_peak : memory.torch_in_use};
    if (!peak) engine_.reset_peak_memory();
  }

  const Mesh& mesh_;
  fsdp::Engine& engine_;
  planning::BlankModel& model_;
  fsdp::AdamW optimizer_;
};

Measured train(const Mesh& mesh, const Settings& settings, const fsdp::Options& options,
               const std::function<planning::BlankModel()>& build, int64_t resident_before) {
  Measured measured{.resident_before = mesh.max(resident_before)};
  forget_highest_resident();
  const int64_t before_building = status_bytes("VmRSS");
  fsdp::BuildScope building(mesh, options);
  planning::BlankModel model = build();
  fsdp::Engine engine(model.root, building);
  measured.building_peak = mesh.max(status_bytes("VmHWM") - before_building);
  measured.resident_built = mesh.max(resident_bytes());
  model.root->train();
  Training training(mesh, engine, model);
  engine.reset_peak_memory();  // building_peak already holds the peak of building
  for (int64_t step = 0; step < settings.steps; ++step) training.step(measured);
  measured.resident_peak = mesh.max(highest_resident_bytes());
  measured.exposed_ms = static_cast<double>(engine.stats().exposed_comm_ns) / 1e6 /
                        static_cast<double>(settings.steps);
  if (!settings.run.trace_file.empty()) {
    training.trace_step(measured, settings.run.trace_file);
  }
  return measured;
}

std::string to_json(const Phase& phase) {
  std::string json = "{";
  for (int i = 0; i < fsdp::kMemoryCategories; ++i) {
    const auto category = static_cast<fsdp::MemoryCategory>(i);
    json += fmt::format("\"{}\": {}, ", name_of(category), phase.engine[category]);
  }
  return json + fmt::format("\"LibTorch\": {}}}", phase.torch);
}

// Returns the object without its closing brace.
std::string to_json(const Bytes& bytes) {
  std::vector<std::string> phases;
  for (size_t i = 0; i < kPhases.size(); ++i) {
    phases.push_back(fmt::format("\"{}\": {}", kPhases[i], to_json(bytes.phases[i])));
  }
  return fmt::format(
      "{{\"phases\": {{{}}}, \"engine held\": {}, \"torch peak\": {}, \"device peak\": {}, "
      "\"host\": {}, \"sent\": {}",
      fmt::join(phases, ", "), bytes.engine_held, bytes.torch_peak, bytes.device_peak, bytes.host,
      bytes.sent);
}

std::string to_json(const std::optional<Measured>& measured) {
  if (!measured) return "null";
  return fmt::format(
      "{}, \"resident before\": {}, \"resident built\": {}, \"resident peak\": {}, \"building "
      "peak\": {}, "
      "\"step ms\": [{:.3f}], \"exposed ms\": {:.3f}, \"losses\": [{}]}}",
      to_json(measured->bytes), measured->resident_before, measured->resident_built,
      measured->resident_peak, measured->building_peak, fmt::join(measured->step_ms, ", "),
      measured->exposed_ms, fmt::join(measured->losses, ", "));
}

// Returns the request of a plan for processes of one host, as fsdp-run starts them.
fsdp::PlanRequest imagined_request(const Settings& settings, const fsdp::Options& options) {
  const bool on_gpus = settings.run.mesh.device == fsdp::DeviceKind::kCuda;
  return {.ranks = static_cast<int>(settings.planned.count()),
          .mesh = {.device = settings.run.mesh.device,
                   .shard = static_cast<int>(settings.planned.of_group),
                   .replicate = static_cast<int>(settings.planned.groups)},
          .maps_shards = settings.planned.count() > 1 && !on_gpus,
          .options = options};
}

int probe(const Mesh& real, const fsdp::RunOptions& run) {
  at::set_num_threads(1);  // a rank has one core, and plans count scratch for one thread
  Settings settings;
  planning::KnownModel known;
  fsdp::run_or_throw_on_all_ranks(real, "reading the command line", [&] {
    settings = read_command_line(run);
    known = planning::find_model(settings.model);
    check_shape(settings, known, real.world_size());
  });
  fsdp::Options options = settings.run.engine;
  options.unit_options = known.unit_options;
  if (options.memory_limit == 0) options.memory_limit = kUnreached;
  const auto build = [&] { return known.build(settings.batch); };
  const auto loss = [](planning::BlankModel& model) { return model.loss(); };

  const bool is_simulated = settings.simulated.count() > 0;
  const Mesh mesh =
      is_simulated ? fsdp::testing::simulated_mesh(static_cast<int>(settings.simulated.count()), {},
                                                   static_cast<int>(settings.simulated.groups))
                   : real;
  malloc_trim(0);  // free memory from the start is then not counted
  const int64_t resident_before = resident_bytes();
  std::optional<fsdp::StepPlan> plan;
  std::optional<Measured> measured;
  if (settings.planned.count() > 0) {
    plan = fsdp::plan(imagined_request(settings, options), build, loss);
  } else {
    // Simulated ranks need no memory on this host, so the plan must not be refused.
    plan = plan_run(mesh, options, {.force = run.force || is_simulated}, build, loss);
    measured = train(mesh, settings, options, build, resident_before);
  }
  if (mesh.rank() == 0) {
    fmt::print(
        "{{\"parameters\": {}, \"units\": {}, \"torch\": \"{}\", \"planned\": {}}}, "
        "\"measured\": {}}}\n",
        plan->parameters, plan->units, TORCH_VERSION, to_json(planned_bytes(*plan)),
        to_json(measured));
    std::fflush(stdout);
  }
  // The watcher stops when it reads that line. No rank may end earlier. Otherwise its shared pages
  // would count fully in the other ranks.
  mesh.max(0, "end");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_program(argc, argv,
                           [](const Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace&) {
                             return probe(mesh, run);
                           },
                           {.diagnostics = true, .plans = true, .others = true});
}
