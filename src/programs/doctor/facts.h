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
  std::string torch_built;   // the LibTorch that this was built with, "2.15"
  std::string torch_loaded;  // the LibTorch that is loaded, "2.15.0"
  std::string cuda_built;    // the CUDA compiler of the GPU's part, "13.2.86"; empty: not built
};

// The space in /dev/shm.
struct SharedFolderFacts {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string why_none{};  // why it cannot be used; empty: it can
};

// The process's resource limits. No value: unlimited.
struct LimitFacts {
  std::optional<int64_t> locked_bytes;   // ulimit -l
  std::optional<int64_t> open_files;     // -n
  std::optional<int64_t> processes;      // -u; threads count
  std::optional<int64_t> address_bytes;  // -v
};

// An environment variable.
struct Variable {
  std::string name;
  std::string value;
};

// MASTER_ADDR, the address of the rendezvous of ranks on several hosts.
struct MasterFacts {
  std::string name;
  TaskEnd asked{};  // unless kDone, the resolver did not answer
  std::vector<std::string> addresses{};
  std::string why_none{};  // why it does not resolve; empty: it does
};

// The host's memory.
struct MemoryFacts {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;        // by the system's estimate
  double copied_per_second = 0;  // bytes that one core copies
};

// The facts about the host, without GPUs.
struct HostFacts {
  // Version of the driver's kernel module, "580.65.06"; empty: /proc lists none.
  std::string driver_module;
  SharedFolderFacts shared_folder;
  std::optional<ErrorText> job_memory_refusal;  // why processes cannot share memory
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
  std::optional<ErrorText> refusal{};  // why the engine cannot use it
};

// The first version of NCCL that supports several ranks on one GPU.
inline constexpr int kNcclSharesGpus = 23003;

// The loaded NCCL.
struct NcclFacts {
  int version = 0;                     // 23007 for 2.30.7
  std::optional<ErrorText> refusal{};  // why it cannot be used
};

// The GPUs of this process, as CUDA reports them.
struct CudaFacts {
  TaskEnd asked{};  // unless kDone, all members below are empty
  // Why there is no GPU and the remedy; empty if there is one.
  std::string why_none{};
  std::string hint{};
  CudaVersions versions{};
  std::vector<GpuFacts> gpus{};
  std::vector<std::vector<bool>> reaches{};  // [from][to], by ordinal
  NcclFacts nccl{};
};

// The result of the loopback (loopback.h).
struct LoopbackFacts {
  int ranks = 0;  // 0: it was not run
  TaskEnd end{};
};

// All facts about a machine.
struct Facts {
  VersionFacts versions;
  HostFacts host;
  CudaFacts cuda;  // default values if only the CPU is checked
  LoopbackFacts loopback;
};

}  // namespace fsdp::doctor
