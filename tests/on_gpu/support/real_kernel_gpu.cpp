#include "kernels/support/elements.h"
#include "kernels/support/streams.h"
#include "kernels_simulated/support/kernel_gpu.h"
#include "kernels_simulated/support/simulated_kernels.h"
#include "runtime/open_cuda.h"

namespace fsdp::test {

// This GPU needs no state of its own. It is the library's own device, so the kernels are those of
// the shipped libfsdp_cuda.so.
struct KernelGpu::State {};

const kernels::KernelTable& gpu_kernels() { return *cuda_device(0).kernels(); }

KernelGpu::KernelGpu(uint32_t /*seed*/) {}
KernelGpu::~KernelGpu() = default;

const Device& KernelGpu::device() const { return cuda_device(0); }

std::vector<testing::sim::LaunchRecord> KernelGpu::take_launches() { return {}; }

const Device& kernel_device() { return simulated_device(); }

const std::vector<int64_t> kSizes{0,  1,    3,    7,    31,           32,
                                  65, 1009, 4096, 4097, 3 * 4096 + 5, (1 << 20) + 1};

}  // namespace fsdp::test
