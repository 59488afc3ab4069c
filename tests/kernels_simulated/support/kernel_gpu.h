// The GPU on which the tests of kernels run one call. It is simulated, or it is this machine's GPU
// (tests/on_gpu).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/device.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::test {

// Returns the GPU's kernels. No KernelGpu has to exist.
const kernels::KernelTable& gpu_kernels();

// The GPU of one call. Requires: no other KernelGpu exists.
class KernelGpu {
 public:
  // `seed` selects the order of blocks and warps on a simulated GPU.
  explicit KernelGpu(uint32_t seed);
  ~KernelGpu();

  const Device& device() const;
  // Returns the launches since the last call, or none on a real GPU, which does not report them.
  // Errors: std::runtime_error with the reports of the simulated GPU.
  std::vector<testing::sim::LaunchRecord> take_launches();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::test
