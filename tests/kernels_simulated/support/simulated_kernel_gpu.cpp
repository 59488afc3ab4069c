#include <stdexcept>
#include <string>

#include "kernels/cuda/kernels.h"
#include "kernels_simulated/support/kernel_gpu.h"
#include "runtime/cuda/cuda_device.h"
#include "simulator/cuda/simulated_gpu.h"

namespace fsdp::test {

struct KernelGpu::State {
  explicit State(uint32_t seed) : gpu({.seed = seed}) {}
  testing::sim::SimulatedGpu gpu;
  const CudaDevice device{0, kernels::cuda::kernel_table()};
};

const kernels::KernelTable& gpu_kernels() { return kernels::cuda::kernel_table(); }

KernelGpu::KernelGpu(uint32_t seed) : state_(std::make_unique<State>(seed)) {}
KernelGpu::~KernelGpu() = default;

const Device& KernelGpu::device() const { return state_->device; }

std::vector<testing::sim::LaunchRecord> KernelGpu::take_launches() {
  const std::vector<std::string> reports = state_->gpu.take_reports();
  if (!reports.empty()) throw std::runtime_error("the simulated GPU: " + reports.front());
  return state_->gpu.launches();
}

}  // namespace fsdp::test
