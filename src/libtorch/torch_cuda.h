// LibTorch's side of a GPU: on which stream its operators run, and where backward does. Through
// c10's interface of all devices, so that nothing of CUDA is linked; on the CPU there is nothing to
// ask.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

namespace fsdp::torch_cuda {

// Errors: StateError where LibTorch has decided to do without CUDA, which it does for good when it
//   is asked for it before its CUDA library is loaded.
void require_cuda(at::Device device);

// CUDA's handle of the calling thread's current stream. Null: the default stream, or the CPU.
void* current_stream(at::Device device);

// Ranks that are threads of one GPU: all on its default stream, nothing of theirs would overlap.
// Where that is the thread's current stream, it goes on with one of LibTorch's pool, ordered behind
// what the default stream was given so far.
void leave_default_stream(at::Device device);

// Backward's nodes of the calling thread run in the calling thread. Else all threads of the process
// share one thread a device for them, where a hook that meets other ranks would wait for a rank
// that can never come.
void run_backward_here(at::Device device);

// LibTorch's allocator for GPUs gives the memory back that it keeps for later. False: it has none,
// as there is no CUDA.
bool empty_cache();

// What LibTorch's allocator for GPUs has taken of the device, with what it keeps for later.
// Errors: InvalidArgument where there is none that tells.
int64_t held_bytes(at::Device device);

// What the calling thread issues while it lives has a name in the GPU's profilers (NVTX): "gather
// encoder.3". Nested; on the CPU it is nothing.
class NamedRange {
 public:
  NamedRange(at::Device device, std::string_view what, std::string_view subject);
  ~NamedRange();
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  const bool is_named_;
};

}  // namespace fsdp::torch_cuda
