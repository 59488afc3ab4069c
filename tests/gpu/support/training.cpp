#include "gpu/support/training.h"

#include <fmt/format.h>
#include <fsdp/engine.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "gpu/support/subjects.h"
#include "libtorch/torch_compat.h"
#include "plan/placement.h"
#include "support/forwarding_communicator.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

RunRanksOptions in_one_thread_each() {
  RunRanksOptions options = torch_ranks_options();
  options.make = nullptr;
  return options;
}

class SummingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Capabilities capabilities() const override {
    Capabilities all = ForwardingCommunicator::capabilities();
    all.averages = false;
    return all;
  }
};

std::vector<WatchedRank> summing_ranks(int world, const MeshOptions& options) {
  std::vector<WatchedRank> ranks;
  for (MeshParts& parts : local_mesh(world, options)) {
    for (AxisCommunicators* axis : {&parts.world, &parts.shard, &parts.replicate}) {
      if (axis->reduce == nullptr) continue;
      axis->reduce = std::make_unique<SummingCommunicator>(std::move(axis->reduce));
    }
    ranks.push_back({nullptr, mesh_of(std::move(parts))});
  }
  return ranks;
}

std::string name_of_type(std::optional<at::ScalarType> type) {
  return torch_compat::type_name(type.value_or(at::kFloat));
}

}  // namespace

std::string describe(const Training& training) {
  const Options& options = training.options;
  const MixedPrecision& types = options.mixed_precision;
  constexpr std::array kNames{"gpt", "bert", "bert mini", "rounded once"};
  return fmt::format(
      "{} on {} ranks{}, {}, prefetch {}, {} to {}{}", kNames[static_cast<size_t>(training.model)],
      training.world, training.groups > 1 ? fmt::format(" in {} groups", training.groups) : "",
      name_of(options.strategy), options.prefetch_units, name_of_type(types.param_dtype),
      name_of_type(types.reduce_dtype), options.cpu_offload ? ", main state on the host" : "");
}

void train_rank(const Training& training, const Mesh& mesh, const std::function<int64_t()>& waits,
                TrainingResult& result) {
  const auto subject = make_subject(training.model);
  Engine engine(subject->module(), mesh, training.options);
  AdamW optimizer(engine, {.lr = 1e-2, .weight_decay = 0.1});
  std::vector<at::Tensor> losses;
  for (int step = 0; step < training.steps; ++step) {
    if (step == 1) {
      mesh.agree("begin", {});
      if (mesh.rank() == 0) result.host_waits = waits();
      mesh.agree("counted", {});
    }
    const at::Tensor loss = subject->loss(step, mesh.rank(), engine.device());
    loss.backward();
    losses.push_back(loss.detach());
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  mesh.agree("end", {});
  if (mesh.rank() == 0) {
    result.host_waits = waits() - result.host_waits;
    for (const at::Tensor& loss : losses) result.losses.push_back(loss.item<float>());
  }
  mesh.agree("counted", {});
  auto parameters = full_parameters(engine);
  if (mesh.rank() != 0) return;
  for (auto& [fqn, value] : parameters) result.parameters[fqn] = value.cpu();
}

TrainingResult train_on(const Training& training, const RunRanksOptions& options,
                        const std::function<int64_t()>& waits) {
  TrainingResult result;
  RunRanksOptions in_groups = options;
  in_groups.mesh.replicate = training.groups;
  run_ranks(
      training.world, [&](const Mesh& mesh) { train_rank(training, mesh, waits, result); },
      in_groups);
  return result;
}

TrainingResult train_on_cpu(const Training& training, bool sums) {
  RunRanksOptions options = in_one_thread_each();
  if (sums) options.make = summing_ranks;
  return train_on(training, options, [] { return 0; });
}

std::string difference(const TrainingResult& one, const TrainingResult& other) {
  for (size_t i = 0; i < one.losses.size(); ++i) {
    if (one.losses[i] == other.losses.at(i)) continue;
    return fmt::format("loss {}: {:.9} and {:.9}", i, one.losses[i], other.losses[i]);
  }
  for (const auto& [fqn, value] : one.parameters) {
    const at::Tensor& there = other.parameters.at(fqn);
    if (bit_equal(value, there)) continue;
    return fmt::format("{}: {} of {} elements, by {:.3g} at most", fqn,
                       value.ne(there).sum().item<int64_t>(), value.numel(),
                       (value - there).abs().max().item<double>());
  }
  return one.parameters.size() == other.parameters.size() ? "" : "other parameters";
}

std::vector<Training> all_trainings(SmallModel model) {
  const int strategies = static_cast<int>(kAllStrategies.size());
  const int rows = 5 * 3 * 2 * strategies * 2;
  std::vector<Training> all;
  for (int i = 0; i < rows; ++i) {
    const int row = i * 53 % rows;
    const int world = row % 5 + 1;  // 5: four ranks in two groups
    const Strategy strategy = kAllStrategies[row / 30 % strategies];
    if (is_by_groups(strategy) != (world == 5)) continue;
    const at::ScalarType dtype = row / 15 % 2 == 0 ? torch::kFloat32 : torch::kBFloat16;
    all.push_back({.model = model,
                   .world = std::min(world, 4),
                   .groups = world == 5 ? 2 : 1,
                   .options = {.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
                               .prefetch_units = row / 5 % 3,
                               .cpu_offload = row / (30 * strategies) == 1,
                               .strategy = strategy}});
  }
  return all;
}

// Keeps a training if it contains a pair of values that no training kept before contains.
std::vector<Training> covering_trainings(const std::vector<Training>& all) {
  std::vector<Training> kept;
  std::set<std::string> held;
  for (const Training& training : all) {
    const std::array<std::string, 5> row{
        fmt::format("{} in {}", training.world, training.groups),
        std::to_string(training.options.prefetch_units),
        name_of_type(training.options.mixed_precision.reduce_dtype),
        std::string(name_of(training.options.strategy)),
        training.options.cpu_offload ? "offload" : ""};
    bool is_new = false;
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) {
        is_new |= held.insert(fmt::format("{}:{} {}:{}", a, row[a], b, row[b])).second;
      }
    }
    if (is_new) kept.push_back(training);
  }
  return kept;
}

std::vector<Training> covering_trainings(SmallModel model) {
  return covering_trainings(all_trainings(model));
}

}  // namespace fsdp::testing
