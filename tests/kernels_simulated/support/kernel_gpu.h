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

// The kernels of it, without an object.
const kernels::KernelTable& gpu_kernels();

// One at a time.
class KernelGpu {
 public:
  // `seed` draws the order of blocks and warps of a simulated one.
  explicit KernelGpu(uint32_t seed);
  ~KernelGpu();

  const Device& device() const;
  // Those of the work so far; none of a real one, which does not tell.
  // Errors: std::runtime_error with what a simulated one has found.
  std::vector<testing::sim::LaunchRecord> take_launches();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp::test
