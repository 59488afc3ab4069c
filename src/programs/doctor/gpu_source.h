// The GPUs that are looked at: this machine's, or a test's.
#pragma once

#include <functional>

#include "comm/nccl/nccl_library.h"
#include "programs/doctor/bounded_task.h"
#include "programs/doctor/facts.h"
#include "runtime/open_cuda.h"

namespace fsdp::doctor {

// Any of these may hang, and is called once.
struct GpuSource {
  std::function<CudaDevices()> devices;
  // Asked where there are devices.
  std::function<const CudaLibrary&()> library;
  // Errors: DeviceError that says why there is none.
  std::function<const nccl::Library&()> nccl;
  // The loopback on so many ranks, a GPU each, by NCCL where there are several. `tell_stuck` hears
  // of a call of this process that does not come back.
  // Errors: what the first rank to fail has thrown.
  std::function<void(int ranks, const TellStuck& tell_stuck)> loop_back;
};

// Those that the engine would find here.
GpuSource gpus_of_machine();

// Errors: DeviceError where CUDA does not answer about GPUs that it has counted.
CudaFacts gather_cuda(const GpuSource& source);

}  // namespace fsdp::doctor
