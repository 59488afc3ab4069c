// Thread ranks that call LibTorch.
#pragma once

#include <c10/core/AutogradState.h>
#include <fsdp/options.h>

#include <utility>

#include "support/run_ranks.h"
#include "support/sim/test_device.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

// Every row of the placement table.
inline constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kZero2, Strategy::kZero1,
                                           Strategy::kReplicate};

// Options::cpu_streams that a test goes through: a GPU has no choice.
inline std::vector<CpuStreamKind> every_stream_kind() {
  if (is_simulated_gpu()) return {CpuStreamKind::kInline};
  return {CpuStreamKind::kInline, CpuStreamKind::kThreaded};
}

// LibTorch's backward in the calling thread only, and its default generator is one for all threads.
// What they compute on: FSDP_TEST_DEVICE (test_device.h).
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

}  // namespace fsdp::testing
