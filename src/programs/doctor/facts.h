// Holds the facts about a machine. They are plain values, so tests can describe any machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cgroup.h"
#include "base/cpu_features.h"
#include "fsdp/error.h"
#include "programs/doctor/bounded_task.h"
#include "runtime/cuda/cuda_library.h"

namespace fsdp::doctor {

// Versions of the library and of its dependencies.
struct VersionFacts {
  std::string library;
  std::string torch_built;   // the LibTorch of the build, "2.15"
  std::string torch_loaded;  // the LibTorch that is loaded, "2.15.0"
  std::string cuda_built;    // the CUDA compiler of libfsdp_cuda.so, "13.2.86"; empty: not built
};

// The space in /dev/shm.
struct SharedFolderFacts {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string why_none{};  // reason why it cannot be used; empty if it can
};

// The resource limits of the process. No value means unlimited.
struct LimitFacts {
  std::optional<int64_t> locked_bytes;   // ulimit -l
  std::optional<int64_t> open_files;     // -n
  std::optional<int64_t> processes;      // limit of ulimit -u; threads count, too
  std::optional<int64_t> address_bytes;  // -v
};

// An environment variable.
struct Variable {
  std::string name;
  std::string value;
};

// The address in MASTER_ADDR. Ranks on several hosts connect to it.
struct MasterFacts {
  std::string name;
  TaskEnd asked{};  // if not kDone, the resolver did not answer
  std::vector<std::string> addresses{};
  std::string why_none{};  // reason why it does not resolve; empty if it does
};

// The host's memory.
struct MemoryFacts {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;        // free memory, as the kernel estimates it
  double copied_per_second = 0;  // bytes per second that one core copies
};

// The facts about the host, without GPUs.
struct HostFacts {
  // The version of the driver's kernel module, for example "580.65.06". Empty if /proc lists no
  // such module.
  std::string driver_module;
  SharedFolderFacts shared_folder;
  std::optional<ErrorText> job_memory_refusal;  // reason why processes cannot share memory
  LimitFacts limits;
  int cores = 1;      // cores that this process may use
  int all_cores = 1;  // cores of the machine
  CgroupLimits container;
  MemoryFacts memory;
  FastProducts products;
  std::optional<MasterFacts> master;  // none: MASTER_ADDR is not set
  std::vector<Variable> variables;    // variables that affect a run, sorted by name
};

// One GPU.
struct GpuFacts {
  int ordinal = 0;
  CudaDeviceFacts device;
  std::string bus;
  int64_t free_bytes = 0;
  std::optional<ErrorText> refusal{};  // reason why the engine cannot use it
};

// The first version of NCCL that supports several ranks on one GPU.
inline constexpr int kNcclSharesGpus = 23003;

// The loaded NCCL.
struct NcclFacts {
  int version = 0;                     // 23007 for 2.30.7
  std::optional<ErrorText> refusal{};  // reason why it cannot be used
};

// The GPUs of this process, as CUDA reports them.
struct CudaFacts {
  TaskEnd asked{};  // if not kDone, all members below are empty
  // The reason why there is no GPU, and the remedy. Empty if there is a GPU.
  std::string why_none{};
  std::string hint{};
  CudaVersions versions{};
  std::vector<GpuFacts> gpus{};
  std::vector<std::vector<bool>> reaches{};  // [from][to], by ordinal
  NcclFacts nccl{};
};

// The result of the loopback (loopback.h).
struct LoopbackFacts {
  int ranks = 0;  // 0: the loopback was not run
  TaskEnd end{};
};

// All facts about a machine.
struct Facts {
  VersionFacts versions;
  HostFacts host;
  CudaFacts cuda;  // all members have default values if only the CPU is checked
  LoopbackFacts loopback;
};

}  // namespace fsdp::doctor
