#include "gpu/support/faulty_training.h"

#include <execinfo.h>
#include <fsdp/optim.h>
#include <fsdp/trace.h>

#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

namespace fsdp::testing {
namespace {

struct Doing {
  int rank = 0;
  Stage stage = Stage::kNone;
  std::string event, subject;
};
thread_local Doing doing;

// The number of frames of the simulated runtime itself, and the number of callers above them that
// distinguish sites. There are enough callers to reach from a launch to the boundary of a unit.
constexpr int kOwnFrames = 6;
constexpr int kCallers = 8;
constexpr int kNearest = 4;

void add_callers(CudaCall& call) {
  std::array<void*, kOwnFrames + kCallers> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, one frame at a time
  for (int i = kOwnFrames; i < count; ++i) {
    hash = (hash ^ reinterpret_cast<uint64_t>(frames[static_cast<size_t>(i)])) * 0x100000001b3;
    if (i < kOwnFrames + kNearest) call.line = hash;
  }
  call.site = hash;
}

// A log of the calls that also chooses the call that fails. Requires: the runtime's mutex is
// locked.
class CallLog {
 public:
  explicit CallLog(std::optional<Fault> fault) : fault_(std::move(fault)) {}

  std::optional<cudaError_t> next(std::string_view name) {
    if (doing.stage == Stage::kNone) return std::nullopt;
    CudaCall call{.rank = doing.rank,
                  .stage = doing.stage,
                  .name = std::string(name),
                  .event = doing.event,
                  .subject = doing.subject};
    add_callers(call);
    call.nth = ++seen_[{call.rank, call.stage, call.site}];
    const auto [last, is_first] = last_.try_emplace(call.rank, calls.size());
    if (!is_first) {
      calls[last->second].precedes_release = is_release(call.name);
      last->second = calls.size();
    }
    calls.push_back(call);
    if (!fault_ || !call.is(fault_->call)) return std::nullopt;
    failed = std::move(call);
    return fault_->code;
  }

  std::vector<CudaCall> calls;
  std::optional<CudaCall> failed;

 private:
  const std::optional<Fault> fault_;
  std::map<std::tuple<int, Stage, uint64_t>, int64_t> seen_;
  std::map<int, size_t> last_;  // by rank: the index of its last call
};

void step(torch::nn::Module& model, AdamW& optimizer, int number) {
  graph_loss(model, number, doing.rank).backward();
  const GradientReport report = optimizer.clip_grad_norm(1.0);
  optimizer.step();
  optimizer.zero_grad();
  REQUIRE(report.finite());
}

void use_between(torch::nn::Module& model, Engine& engine, const AdamW& optimizer) {
  const torch::NoGradGuard no_grad;
  {
    const Gathered whole(engine, WriteBack::kOwnSlice);
    model.named_parameters()["u1.weight"].mul_(0.5);
    REQUIRE(optimizer.steps() == 3);
  }
  engine.visit_full_parameters([](std::string_view, const at::Tensor&) {});
  for (ShardedParameter& each : engine.sharded_parameters()) each.local.data().mul_(0.5);
  engine.average_buffers();
  graph_loss(model, 3, doing.rank);
}

void train(const Mesh& mesh, const FaultyTraining& training) {
  doing = {.rank = mesh.rank()};
  const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
  model->register_buffer("average", torch::ones({5}));
  doing.stage = Stage::kConstruction;
  {
    Engine engine(model, mesh, training.options);
    AdamW optimizer(engine, {.lr = 1e-2});
    engine.observe_events([](std::string_view event, std::string_view unit) {
      doing.event = event;
      doing.subject = unit;
    });
    std::optional<Trace> trace;
    if (training.is_traced) trace.emplace(engine);
    doing.stage = Stage::kFirstStep;
    step(*model, optimizer, 0);
    doing.stage = Stage::kNone;
    step(*model, optimizer, 1);
    doing.stage = Stage::kSteadyStep;
    step(*model, optimizer, 2);
    doing.stage = Stage::kBetween;
    use_between(*model, engine, optimizer);
    doing.stage = Stage::kEnd;
  }
  doing.stage = Stage::kNone;  // the next destructor is the stand-in's for LibTorch
  const cudaError_t stays = cudaPeekAtLastError();
  if (stays == cudaSuccess || sim::is_sticky(stays)) return;
  throw std::logic_error("an error that was dealt with is left for LibTorch's next launch");
}

}  // namespace

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::kNone:
      return "nothing";
    case Stage::kConstruction:
      return "construction";
    case Stage::kFirstStep:
      return "first step";
    case Stage::kSteadyStep:
      return "steady step";
    case Stage::kBetween:
      return "between steps";
    case Stage::kEnd:
      return "end";
  }
  return "unknown";
}

bool is_release(std::string_view name) {
  return name == "cudaFree" || name == "cudaFreeHost" || name == "cudaEventDestroy" ||
         name == "cudaStreamDestroy";
}

FaultyResult train_with(const FaultyTraining& training, const std::optional<Fault>& fault) {
  FaultyResult result;
  CallLog log(fault);
  {
    const auto session = std::make_shared<SimulatedSession>(
        SimulatedRanksOptions{.simulation = {.seed = 3}, .keeps_reports = true});
    session->gpu.choose([&](std::string_view name) { return log.next(name); });
    session->left_behind.tell(
        [&](std::vector<std::string> left) { result.left = std::move(left); });
    RunRanksOptions ranks = on_simulated_gpu(session);
    ranks.mesh.timeout = std::chrono::seconds(20);
    result.thrown = run_ranks_to_end(
                        training.world, [&](const Mesh& mesh) { train(mesh, training); }, ranks)
                        .of_rank;
    result.reports = session->gpu.take_reports();
  }
  result.calls = std::move(log.calls);
  result.failed = log.failed;
  return result;
}

}  // namespace fsdp::testing
