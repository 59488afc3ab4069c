// One rank's memory while a BERT trains: engine buffers planned, measured and by the formula, the
// tensors that LibTorch holds beside them, and what the system says. benchmarks/memory starts it
// with 1, 2, 4 and 8 ranks and watches the processes; rank 0 prints one JSON object.
//   fsdp-run -n 4 memory_probe [PRESET [TRACE]]
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <torch/torch.h>

#include <array>
#include <fstream>
#include <string>

#include "base/bytes.h"
#include "comm/mesh_state.h"
#include "models/bert/bert_model.h"
#include "models/bert/presets.h"
#include "runtime/stream.h"

namespace {

using fsdp::MemoryBytes;
using fsdp::MemoryCategory;

constexpr int64_t kTokens = 128;
constexpr int kSteps = 4;

// Proportional set size: pages that n processes share count 1/n in each, so ranks' figures add up.
int64_t resident_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    if (line.starts_with("Pss:")) return std::stoll(line.substr(4)) * 1024;
  }
  return 0;
}

// "VmRSS", or "VmHWM": the most that ever was.
int64_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

struct Measured {
  std::array<MemoryBytes, 5> phases;  // rest, forward peak, after forward, backward peak, after
  int64_t resident_before = 0, resident_built = 0;
  int64_t building_peak = 0;  // of the resident set, over what it was before
  int64_t activations = 0;    // LibTorch's own tensors between forward and backward
};

// What LibTorch's CPU allocator has given to this thread since it was made and not got back. Engine
// buffers come from elsewhere.
class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    in_use_ += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t in_use() const { return in_use_; }

 private:
  int64_t in_use_ = 0;
};

at::Tensor train_forward(fsdp::Unit<bert::QuestionAnswering>& model) {
  const at::Tensor ids = torch::randint(1000, {1, kTokens}, torch::kLong);
  const at::Tensor logits =
      model(ids, torch::zeros_like(ids), torch::ones({1, kTokens}, torch::kLong));
  const at::Tensor at = torch::zeros({1}, torch::kLong);
  return bert::span_loss_sum(logits, at, at);
}

// The largest value over the ranks.
int64_t most(const fsdp::Mesh& mesh, int64_t value) {
  const auto stream = fsdp::cpu_device().make_stream({.name = "probe", .runs_beside = false});
  const fsdp::CollectivePart part{&value, &value, 1, fsdp::DType::kInt64};
  mesh.state().control_communicator().all_reduce({&part, 1}, fsdp::ReduceOp::kMax, {0, "probe"},
                                                 *stream);
  return value;
}

std::string to_json(const MemoryBytes& bytes) {
  std::string json = "{";
  for (int i = 0; i < fsdp::kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    json += fmt::format("\"{}\": {}, ", name_of(category), bytes[category]);
  }
  return json + fmt::format("\"total\": {}}}", bytes.total());
}

// docs/memory.md: 12 bytes a parameter at rest, 16 with main gradients, cut by the ranks.
double formula_bytes(double state_bytes, double parameters, int ranks) {
  return state_bytes * parameters / ranks;
}

// For the picture: a step's bytes by category, with the units that hold them.
void trace_a_step(fsdp::Unit<bert::QuestionAnswering>& model, fsdp::Engine& engine,
                  fsdp::Optimizer& optimizer, const std::string& file) {
  const fsdp::Trace trace(engine);
  train_forward(model).backward();
  optimizer.step();
  optimizer.zero_grad();
  trace.write(file);
}

int probe(const fsdp::Mesh& mesh, const std::string& preset, const std::string& trace_file) {
  at::set_num_threads(1);
  Measured measured;
  const auto config = bert::preset_config(preset);
  measured.resident_before = most(mesh, resident_bytes());
  const int64_t before_building = status_bytes("VmRSS");
  fsdp::BuildScope building(mesh, {.unit_options = bert::unit_options});
  fsdp::Unit<bert::QuestionAnswering> model(config);
  fsdp::Engine engine(model, building);
  measured.building_peak = most(mesh, status_bytes("VmHWM") - before_building);
  measured.resident_built = most(mesh, resident_bytes());
  fsdp::AdamW optimizer(engine, {.lr = 1e-4});
  const auto tensors = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, tensors);
  const auto& phases = measured.phases;
  for (int step = 0; step < kSteps; ++step) {
    engine.reset_peak_memory();
    measured.phases[0] = engine.stats().memory.in_use;
    const at::Tensor loss = train_forward(model);
    measured.phases[1] = engine.stats().memory.peak;
    measured.phases[2] = engine.stats().memory.in_use;
    measured.activations = std::max(measured.activations, tensors->in_use());
    engine.reset_peak_memory();
    loss.backward();
    measured.phases[3] = engine.stats().memory.peak;
    measured.phases[4] = engine.stats().memory.in_use;
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  measured.activations = most(mesh, measured.activations);
  if (!trace_file.empty()) trace_a_step(model, engine, optimizer, trace_file);
  int64_t parameters = 0, largest = 0;
  for (const auto& parameter : engine.sharded_parameters()) {
    int64_t numel = 1;
    for (const int64_t size : parameter.shape) numel *= size;
    parameters += numel;
    largest = std::max(largest, numel);
  }
  if (mesh.rank() != 0) return 0;
  const fsdp::MemoryPlan plan = engine.memory_plan();
  const std::array planned{plan.rest, plan.forward_peak, plan.after_forward, plan.backward_peak,
                           plan.after_backward};
  const std::array names{"rest", "forward peak", "after forward", "backward peak",
                         "after backward"};
  std::string json = fmt::format("{{\"ranks\": {}, \"preset\": \"{}\", \"parameters\": {}",
                                 mesh.world_size(), preset, parameters);
  for (size_t i = 0; i < names.size(); ++i) {
    json += fmt::format(", \"{}\": {{\"planned\": {}, \"measured\": {}}}", names[i],
                        to_json(planned[i]), to_json(phases[i]));
  }
  json += fmt::format(", \"formula rest\": {:.0f}, \"formula step\": {:.0f}",
                      formula_bytes(12, static_cast<double>(parameters), mesh.world_size()),
                      formula_bytes(16, static_cast<double>(parameters), mesh.world_size()));
  json += fmt::format(", \"building peak\": {}", measured.building_peak);
  json += fmt::format(", \"held\": {}, \"planned held\": {}", engine.stats().memory.held_bytes,
                      plan.held_bytes);
  json += fmt::format(", \"largest gradient\": {}", largest * static_cast<int64_t>(sizeof(float)));
  json += fmt::format(", \"activations\": {}, \"resident before\": {}, \"resident built\": {}}}",
                      measured.activations, measured.resident_before, measured.resident_built);
  std::printf("%s\n", json.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string preset = argc > 1 ? argv[1] : "small";
  const std::string trace_file = argc > 2 ? argv[2] : "";
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) { return probe(mesh, preset, trace_file); });
}
