// The part of NCCL's C interface that this library calls. The functions are found at run time, so a
// program without GPU neither links nor loads NCCL, and a process never loads two versions.
//
// Names and values are those of nccl.h, whose C interface stays compatible. Requires NCCL 2.26 or
// later.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

namespace fsdp::nccl {

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

enum class DataType : int {
  kUInt8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

enum class RedOp : int { kSum = 0, kMax = 2 };

struct Comm;    // ncclComm of NCCL
struct Window;  // the type behind ncclWindow_t

struct UniqueId {
  std::array<char, 128> internal;
};

inline constexpr unsigned kConfigVersion = 22800;
inline constexpr int kCtaPolicyZero = 2;    // copy engines instead of kernels, if possible
inline constexpr int kSymmetricWindow = 1;  // all ranks use the same offsets
inline constexpr int kWindowsFrom = 23102;  // older versions corrupt registered memory

// ncclConfig_t as of 2.28. NCCL reads the first `size` bytes and uses its defaults for the fields
// after them. Usually `size` covers only the fields that NCCL 2.18 knows.
struct Config {
  static constexpr int kUndefined = INT_MIN;
  size_t size = 48;
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};
static_assert(offsetof(Config, comm_name) == 48);

// The functions of NCCL. `stream` is a cudaStream_t.
struct Library {
  Result (*get_version)(int* version) = nullptr;
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  Result (*comm_init_rank_config)(Comm** comm, int ranks, UniqueId id, int rank,
                                  Config* config) = nullptr;
  Result (*comm_split)(Comm* comm, int color, int key, Comm** made, Config* config) = nullptr;
  Result (*comm_finalize)(Comm* comm) = nullptr;
  Result (*comm_destroy)(Comm* comm) = nullptr;
  Result (*comm_abort)(Comm* comm) = nullptr;
  Result (*comm_get_async_error)(Comm* comm, Result* result) = nullptr;
  const char* (*get_error_string)(Result result) = nullptr;
  const char* (*get_last_error)(Comm* comm) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_gather)(const void* send, void* recv, size_t count, DataType type, Comm* comm,
                       void* stream) = nullptr;
  Result (*reduce_scatter)(const void* send, void* recv, size_t count, DataType type, RedOp op,
                           Comm* comm, void* stream) = nullptr;
  Result (*all_reduce)(const void* send, void* recv, size_t count, DataType type, RedOp op,
                       Comm* comm, void* stream) = nullptr;
  Result (*broadcast)(const void* send, void* recv, size_t count, DataType type, int root,
                      Comm* comm, void* stream) = nullptr;
  // These functions are null if NCCL is too old for them: see require_windows.
  Result (*mem_alloc)(void** memory, size_t bytes) = nullptr;
  Result (*mem_free)(void* memory) = nullptr;
  Result (*comm_window_register)(Comm* comm, void* memory, size_t bytes, Window** window,
                                 int flags) = nullptr;
  Result (*comm_window_deregister)(Comm* comm, Window* window) = nullptr;
};

// Formats a version: "2.30.7" for 23007.
std::string version_text(int version);

// Checks that this NCCL can register memory. Errors: InvalidArgument, with the reason, if it
// cannot.
void require_windows(const Library& library);

// Finds the NCCL that LibTorch's CUDA library uses. cuda_devices() of runtime/open_cuda.h has
// loaded that library. NCCL is either libnccl.so.2 or linked into the CUDA library. If NCCL is in
// neither, opens the file in the environment variable FSDP_NCCL. Errors: DeviceError (70), with the
// reason, if no NCCL is found.
Library find_library();
// Returns the result of find_library, which is called once per process. Thread-safe.
const Library& library();

}  // namespace fsdp::nccl
