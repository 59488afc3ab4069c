// Declares the source of the facts about GPUs: this machine, or a test's substitute.
#pragma once

#include <functional>

#include "comm/nccl/nccl_library.h"
#include "programs/doctor/bounded_task.h"
#include "programs/doctor/facts.h"
#include "runtime/open_cuda.h"

namespace fsdp::doctor {

// The functions that gather facts about GPUs. Each of them may hang. Each is called once.
struct GpuSource {
  std::function<CudaDevices()> devices;
  // Called only if `devices` has found a GPU.
  std::function<const CudaLibrary&()> library;
  // Errors: DeviceError, which gives the reason, if there is no NCCL.
  std::function<const nccl::Library&()> nccl;
  // Runs the loopback (doctor/loopback.h), a trial of kernels, copies and collectives, on `ranks`
  // ranks with one GPU each. Several ranks use NCCL. If an operation on a GPU does not return in
  // this process, calls `tell_stuck`.
  // Errors: the exception of the first rank that fails.
  std::function<void(int ranks, const TellStuck& tell_stuck)> loop_back;
};

// Returns the source for the GPUs that the engine would find on this machine.
GpuSource gpus_of_machine();

// Gathers the facts about GPUs.
// Errors: DeviceError if CUDA fails for one of the GPUs that it reports.
CudaFacts gather_cuda(const GpuSource& source);

}  // namespace fsdp::doctor
