// Compares the planned size of a checkpoint with the files of a saved one.
#include <fsdp/checkpoints.h>
#include <fsdp/plan.h>
#include <fsdp/training_state.h>

#include <filesystem>
#include <memory>

#include "base/bytes.h"
#include "checkpoint/checkpoint_size.h"
#include "checkpoint/training_state_parts.h"
#include "io/checkpoint_manifest.h"
#include "planner/support/optimizer_of.h"
#include "support/models.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// A model with a frozen parameter, a tied one, an ignored one and buffers.
struct MixedImpl : torch::nn::Module {
  MixedImpl() : chain(16, 2) {
    register_module("chain", chain);
    scale = register_parameter("scale", torch::ones({17}), /*requires_grad=*/false);
    table = register_parameter("table", torch::ones({4500}));
    offset = register_parameter("offset", torch::zeros({17}));
    register_parameter("other_offset", offset);
    register_buffer("seen", torch::zeros({}, torch::kLong));
    register_buffer("mask", torch::ones({3, 5}, torch::kBFloat16));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return chain(tokens) * scale + offset + table.slice(0, 0, 17);
  }
  Unit<Chain> chain;
  at::Tensor scale, table, offset;
};
TORCH_MODULE(Mixed);

struct Case {
  int ranks = 1;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Options options{};
  CheckpointOptions checkpoints{};
};

// Saves a checkpoint. Returns its size as rank 0 computes it before the save.
CheckpointSize save_one(const Case& each, const std::filesystem::path& folder) {
  CheckpointSize size;
  run_torch_ranks(each.ranks, [&](const Mesh& mesh) {
    Unit<Mixed> model;
    Engine engine(model, mesh, each.options);
    const auto optimizer = optimizer_of(engine, {.kind = each.optimizer});
    TrainingState state(engine);
    state.add("optimizer", *optimizer);
    loss_of(model, batch_of(0, mesh.rank())).backward();
    optimizer->step();
    optimizer->zero_grad();
    const SaveStateOptions options{.step = 1, .weights_only = each.checkpoints.save_only_model};
    const CheckpointSize mine =
        checkpoint_size(parts_of(state).parts_to_save(options), mesh.world_size());
    if (mesh.rank() == 0) size = mine;
    save(state, folder, options);
  });
  return size;
}

void check_as_saved(const Case& each) {
  CAPTURE(each.ranks);
  CAPTURE(static_cast<int>(each.optimizer));
  CAPTURE(static_cast<int>(each.options.strategy));
  const PlanRequest request{.ranks = each.ranks,
                            .options = each.options,
                            .optimizer = each.optimizer,
                            .checkpoints = each.checkpoints};
  const StepPlan planned = plan(
      request, [] { return Unit<Mixed>(); },
      [](Unit<Mixed>& model) { return loss_of(model, batch_of(0, 0)); });
  REQUIRE(planned.checkpoint);
  const ScratchFolder folder;
  const CheckpointSize size = save_one(each, folder / "saved");
  CHECK(planned.checkpoint->tensor_bytes == size.tensor_bytes);
  CHECK(planned.checkpoint->rank_bytes == size.rank_bytes);
  CHECK(planned.checkpoint->most_bytes == size.most_bytes);

  const CheckpointManifest manifest = read_manifest(folder / "saved");
  int64_t tensors = 0, of_rank = 0, files = 0;
  for (const ManifestInterval& interval : manifest.intervals) {
    const int64_t bytes = interval.numel * bits_of(manifest.tensors[interval.tensor].dtype) / 8;
    tensors += bytes;
    if (interval.file == 0) of_rank += bytes;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "saved")) {
    files += round_up(static_cast<int64_t>(entry.file_size()), 4096);
  }
  CHECK(tensors == size.tensor_bytes);
  CHECK(of_rank == size.rank_bytes);
  CHECK(files <= size.most_bytes);
  // The documented bound (docs/checkpoints.md).
  const int64_t count = std::ssize(manifest.tensors);
  CHECK(size.most_bytes - size.tensor_bytes <=
        (24 << 10) + each.ranks * (16 << 10) + count * (512 + 256 * each.ranks));
}

}  // namespace

TEST_CASE("the planned bytes of a checkpoint are those of the saved files") {
  for (const int ranks : {1, 2, 3}) {
    for (const Strategy strategy : kStrategies) {
      check_as_saved({.ranks = ranks, .options = {.strategy = strategy}});
    }
  }
  for (const int ranks : {1, 3}) {
    check_as_saved({.ranks = ranks,
                    .optimizer = OptimizerKind::kAdamW8bit,
                    .options = {.shard_granule = 256}});
  }
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kLars}) {
    check_as_saved({.ranks = 2, .optimizer = kind});
  }
  check_as_saved({.ranks = 2, .options = {.cpu_offload = true}});
  check_as_saved({.ranks = 2, .checkpoints = {.save_only_model = true}});
  const auto is_table = [](std::string_view fqn) { return fqn == "table"; };
  check_as_saved({.ranks = 2, .options = {.ignore = is_table}});
}

TEST_CASE("a plan of GPUs counts their generators, and a plan without checkpoints has no size") {
  const auto planned = [](DeviceKind device, bool has_checkpoints) {
    PlanRequest request{.ranks = 4, .mesh = {.device = device}};
    if (has_checkpoints) request.checkpoints.emplace();
    return plan(
               request, [] { return Unit<Mixed>(); },
               [](Unit<Mixed>& model) { return loss_of(model, batch_of(0, 0)); })
        .checkpoint;
  };
  CHECK_FALSE(planned(DeviceKind::kCpu, false));
  const auto cpu = planned(DeviceKind::kCpu, true), gpu = planned(DeviceKind::kCuda, true);
  CHECK(gpu->tensor_bytes == cpu->tensor_bytes + 4 * 16);
  CHECK(gpu->rank_bytes == cpu->rank_bytes + 16);
}

TEST_CASE("a plan counts the copies that a run on the CPU keeps of its state") {
  for (const bool offload : {false, true}) {
    const ScratchFolder folder;
    const CheckpointOptions checkpoints{.folder = folder.path(), .save_async = true};
    const PlanRequest request{
        .ranks = 2, .options = {.cpu_offload = offload}, .checkpoints = checkpoints};
    const StepPlan planned = plan(
        request, [] { return Unit<Mixed>(); },
        [](Unit<Mixed>& model) { return loss_of(model, batch_of(0, 0)); });
    CHECK(planned.memory.rest[MemoryCategory::kCheckpointStaging] > 0);
    run_torch_ranks(2, [&](const Mesh& mesh) {
      Unit<Mixed> model;
      Engine engine(model, mesh, request.options);
      const std::unique_ptr<Optimizer> optimizer = optimizer_of(engine, {});
      TrainingState state(engine);
      state.add("optimizer", *optimizer);
      Checkpoints saves(state, checkpoints);
      saves.resume();
      for (int step = 0; step < 2; ++step) {
        loss_of(model, batch_of(step, mesh.rank())).backward();
        optimizer->clip_grad_norm(1.0);
        optimizer->step();
        optimizer->zero_grad();
      }
      if (mesh.rank() != 0) return;
      CHECK(engine.memory_plan().rest == planned.memory.rest);
      CHECK(engine.memory_plan().peak_bytes() == planned.memory.peak_bytes());
      CHECK(engine.memory_plan().host_held_bytes == planned.memory.host_held_bytes);
    });
  }
}
