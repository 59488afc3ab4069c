// The GPU on which the tests of kernels run one call: a simulated one, or this machine's
// (tests/on_gpu).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Returns the GPU's kernels; needs no KernelGpu.
const kernels::KernelTable& gpu_kernels();

// The GPU of one call. Requires: there is no other one.
class KernelGpu {
 public:
  // `seed` draws the order of blocks and warps on a simulated GPU.
  explicit KernelGpu(uint32_t seed);
  ~KernelGpu();

  const Device& device() const;
  // Returns the launches of the work so far; empty on a real GPU, which does not report them.
  // Errors: std::runtime_error with a simulated GPU's reports.
  std::vector<testing::sim::LaunchRecord> take_launches();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::test
