#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdlib>

#include "on_gpu/support/gpu_ranks.h"

namespace fsdp::testing {

RunRanksOptions ranks_on_gpu() {
  // Without this workspace setting, a matrix product may have different bits each time.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/false);
  return {.mesh = {.device = DeviceKind::kCuda},
          .in_each_thread = [] { at::set_num_threads(1); },
          .make = nullptr};
}

bool gpu_is_simulated() { return false; }

}  // namespace fsdp::testing
