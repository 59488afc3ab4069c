// Which GPU a rank computes on, and whether all ranks of a job have one.
#pragma once

#include <fsdp/mesh.h>

#include <string>

namespace fsdp {

class ControlPlane;
class Device;

// A rank's, or why it has none.
struct GpuChoice {
  const Device* device = nullptr;
  // Two ranks have one GPU if one of these is equal: instances of one GPU (MIG), which NCCL refuses
  // as it refuses the same GPU, have UUIDs of their own and one board.
  std::string uuid;   // empty: unknown
  std::string board;  // which host since when, and the bus: host names alone may be equal
  std::string place;  // for people: the host's name and the bus
  std::string why_none;
  std::string hint;  // may be empty
};

// Of the process that is number `local_rank` of its host: the GPU of that number; where it sees one
// GPU only, that one, as its launcher may have given each rank its own.
GpuChoice gpu_of_process(int local_rank);
// The GPU that ranks share which are threads of this process, or why there is none. With a GPU
// each, a call of one thread that allocates or loads code could wait for all GPUs of the process,
// one of which runs a collective that waits for this very thread.
GpuChoice gpu_of_threads();

// Whether the ranks of a job, each with its `own` choice, compute on GPUs: all of them, or none.
// Collective where options.device is not kCpu.
// Errors: InvalidArgument (78), on all ranks, where options.device is kCuda and some rank has none,
//   or two have the same; with kAuto options.on_event hears of that on rank 0.
bool compute_on_gpus(const MeshOptions& options, const GpuChoice& own, ControlPlane& plane);
// The same of threads that share their choice.
bool compute_on_gpu(const MeshOptions& options, const GpuChoice& shared);

}  // namespace fsdp
