// What is known of a machine. Plain values: those of any machine can be made up.
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

struct VersionFacts {
  std::string library;
  std::string torch_built;   // the LibTorch that this was built with, "2.15"
  std::string torch_loaded;  // the one that is loaded, "2.15.0"
  std::string cuda_built;    // the CUDA compiler of the GPU's part, "13.2.86"; empty: left out
};

// Of /dev/shm.
struct SharedFolderFacts {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string why_none{};  // empty: it is there
};

// Empty: unlimited.
struct LimitFacts {
  std::optional<int64_t> locked_bytes;   // ulimit -l
  std::optional<int64_t> open_files;     // -n
  std::optional<int64_t> processes;      // -u; threads count
  std::optional<int64_t> address_bytes;  // -v
};

struct Variable {
  std::string name;
  std::string value;
};

// MASTER_ADDR, where ranks of several hosts meet.
struct MasterFacts {
  std::string name;
  TaskEnd asked{};  // unless kDone, the resolver has not answered
  std::vector<std::string> addresses{};
  std::string why_none{};  // empty: it resolves
};

struct MemoryFacts {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;        // by the system's estimate
  double copied_per_second = 0;  // bytes that one core copies
};

struct HostFacts {
  // Of the kernel's module, "580.65.06"; empty: /proc tells of none.
  std::string driver_module;
  SharedFolderFacts shared_folder;
  std::optional<ErrorText> job_memory_refusal;  // why processes cannot share memory
  LimitFacts limits;
  int cores = 1;      // that this process may use
  int all_cores = 1;  // of the machine
  CgroupLimits container;
  MemoryFacts memory;
  FastProducts products;
  std::optional<MasterFacts> master;  // none: MASTER_ADDR is not set
  std::vector<Variable> variables;    // that change what happens, by name
};

struct GpuFacts {
  int ordinal = 0;
  CudaDeviceFacts device;
  std::string bus;
  int64_t free_bytes = 0;
  std::optional<ErrorText> refusal{};  // why the engine cannot use it
};

// The first version of NCCL that has several ranks on one GPU.
inline constexpr int kNcclSharesGpus = 23003;

struct NcclFacts {
  int version = 0;                     // 23007
  std::optional<ErrorText> refusal{};  // why there is none that can be used
};

struct CudaFacts {
  TaskEnd asked{};  // unless kDone, nothing below is known
  // Why there is no GPU, and what would change that; empty where there is one.
  std::string why_none{};
  std::string hint{};
  CudaVersions versions{};
  std::vector<GpuFacts> gpus{};
  std::vector<std::vector<bool>> reaches{};  // [from][to], by ordinal
  NcclFacts nccl{};
};

struct LoopbackFacts {
  int ranks = 0;  // 0: it was not run
  TaskEnd end{};
};

struct Facts {
  VersionFacts versions;
  HostFacts host;
  CudaFacts cuda;  // as made, where no GPU was asked for
  LoopbackFacts loopback;
};

}  // namespace fsdp::doctor
