// Chooses the GPU on which a rank computes, and checks that each rank of a job has its own GPU.
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
  // have different UUIDs and the same board. NCCL rejects two instances of one GPU just as it
  // rejects the same GPU.
  std::string uuid;   // empty: unknown
  std::string board;  // boot id of the host and bus, because host names need not be unique
  std::string place;  // for messages: host name and bus
  std::string why_none;
  std::string hint;  // may be empty
};

// Returns the GPU of the process whose local rank is `local_rank`: the GPU with the number
// `local_rank`. If the process sees only one GPU, returns this GPU, because the launcher may have
// assigned one GPU to each rank.
GpuChoice gpu_of_process(int local_rank);
// Returns the GPU that ranks share if they are threads of this process, or the reason why there is
// none. Threads do not get one GPU each, because this could deadlock. A call that allocates or
// loads code may wait for all GPUs of the process. One of these GPUs may run a collective that
// waits for the calling thread.
GpuChoice gpu_of_threads();

// Returns true if all ranks of a job compute on GPUs, and false if all compute on the CPU. `own` is
// this rank's choice. Collective unless options.device is kCpu.
// Errors: InvalidArgument (78), on all ranks, if options.device is kCuda and some rank has no GPU
//   or two ranks share one. If options.device is kAuto, these cases are no errors, and rank 0
//   reports them to options.on_event.
bool compute_on_gpus(const MeshOptions& options, const GpuChoice& own, ControlPlane& plane);
// Returns true if thread ranks compute on the GPU `shared`. If `shared` has no GPU, throws or
// reports as compute_on_gpus does.
bool compute_on_gpu(const MeshOptions& options, const GpuChoice& shared);

}  // namespace fsdp
