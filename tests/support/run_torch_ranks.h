// Runs thread ranks that call LibTorch.
#pragma once

#include <c10/core/AutogradState.h>
#include <fsdp/options.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "comm/mesh_parts.h"
#include "plan/placement.h"
#include "simulator/test_device.h"
#include "support/run_ranks.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

// Lists of strategies. kStrategies differ on a mesh of one group. kGroupStrategies equal kFullShard
// there, and differ on the meshes of kGroupShapes.
inline std::vector<Strategy> strategies_that(bool (*are)(const StrategyRow& row)) {
  std::vector<Strategy> found;
  for (const StrategyRow& row : strategies()) {
    if (are(row)) found.push_back(row.strategy);
  }
  return found;
}
inline bool is_by_groups(const StrategyRow& row) { return row.is_by_groups(); }
inline const std::vector<Strategy> kStrategies =
    strategies_that([](const StrategyRow& row) { return !row.is_by_groups(); });
inline const std::vector<Strategy> kGroupStrategies = strategies_that(is_by_groups);
inline const std::vector<Strategy> kAllStrategies =
    strategies_that([](const StrategyRow&) { return true; });
inline bool is_by_groups(Strategy strategy) {
  return std::ranges::find(kGroupStrategies, strategy) != std::end(kGroupStrategies);
}
inline const MeshShape kGroupShapes[] = {
    {.replicate = 2, .shard = 2}, {.replicate = 2, .shard = 3}, {.replicate = 3, .shard = 2}};

// Returns the values of Options::tuning.cpu_streams to test. A GPU ignores this option.
inline std::vector<CpuStreamKind> every_stream_kind() {
  if (is_simulated_gpu()) return {CpuStreamKind::kInline};
  return {CpuStreamKind::kInline, CpuStreamKind::kThreaded};
}

// Returns options for ranks. LibTorch's backward runs only in the calling thread, and all threads
// share LibTorch's default generator. FSDP_TEST_DEVICE selects the device (test_device.h).
inline RunRanksOptions torch_ranks_options() {
  return {.mesh = {},
          .in_each_thread =
              [] {
                c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
                at::set_num_threads(1);
              },
          .make = ranks_of_environment()};
}

template <class Body>
void run_torch_ranks(int world, Body body) {
  at::set_num_threads(1);
  run_ranks(world, std::move(body), torch_ranks_options());
}

// Runs body(mesh) on ranks that form groups.
template <class Body>
void run_torch_ranks(const MeshShape& shape, Body body) {
  at::set_num_threads(1);
  RunRanksOptions options = torch_ranks_options();
  options.mesh.shard = shape.shard;
  options.mesh.replicate = shape.replicate;
  run_ranks(shape.size(Axis::kWorld), std::move(body), options);
}

}  // namespace fsdp::testing
