// Thread ranks that call LibTorch.
#pragma once

#include <c10/core/AutogradState.h>
#include <fsdp/options.h>

#include <utility>

#include "support/run_ranks.h"
#include "support/sim/watched_ranks.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

// Every row of the placement table.
inline constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kZero2, Strategy::kZero1,
                                           Strategy::kReplicate};

// LibTorch's backward in the calling thread only, and its default generator is one for all threads.
// With FSDP_TEST_DEVICE=checked the ranks' device is a checked one.
inline RunRanksOptions torch_ranks_options() {
  return {.mesh = {},
          .in_each_thread =
              [] {
                c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
                at::set_num_threads(1);
              },
          .make = wants_checked_device() ? make_checked_ranks : nullptr};
}

template <class Body>
void run_torch_ranks(int world, Body body) {
  at::set_num_threads(1);
  run_ranks(world, std::move(body), torch_ranks_options());
}

}  // namespace fsdp::testing
