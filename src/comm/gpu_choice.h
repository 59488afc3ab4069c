// The choice of the GPU that a rank computes on, and the check that all ranks of a job have one.
#pragma once

#include <fsdp/mesh.h>

#include <string>

namespace fsdp {

class ControlPlane;
class Device;

// A rank's GPU, or the reason why it has none.
struct GpuChoice {
  const Device* device = nullptr;
  // Two ranks share a GPU if their `uuid` or their `board` is equal. Instances of one GPU (MIG)
  // have UUIDs of their own and one board; NCCL rejects them as it rejects the same GPU.
  std::string uuid;   // empty: unknown
  std::string board;  // boot id of the host, and bus: host names need not be unique
  std::string place;  // for messages: host name and bus
  std::string why_none;
  std::string hint;  // may be empty
};

// Returns the GPU of the process that is number `local_rank` of its host: the GPU of that number
// or, if the process sees only one GPU, that one, because its launcher may have given each rank its
// own.
GpuChoice gpu_of_process(int local_rank);
// Returns the GPU that ranks share if they are threads of this process, or why there is none. They
// do not get one GPU each: a call of one thread that allocates or loads code could wait for all
// GPUs of the process, and one of these may run a collective that waits for this very thread.
GpuChoice gpu_of_threads();

// Returns true if the ranks of a job, each with its `own` choice, all compute on GPUs; false if
// none does. Collective unless options.device is kCpu.
// Errors: InvalidArgument (78), on all ranks, if options.device is kCuda and some rank has no GPU
//   or two ranks share one; with kAuto rank 0 reports this to options.on_event.
bool compute_on_gpus(const MeshOptions& options, const GpuChoice& own, ControlPlane& plane);
// Returns the same for threads, which share their choice.
bool compute_on_gpu(const MeshOptions& options, const GpuChoice& shared);

}  // namespace fsdp
