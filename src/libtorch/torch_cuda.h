// LibTorch's side of a GPU: the stream of its operators, the thread of its backward, its memory.
// All calls go through c10's interface of all devices, so nothing of CUDA is linked. On the CPU
// they do nothing.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

namespace fsdp::torch_cuda {

// Throws StateError if LibTorch runs without CUDA. It does so for good if it is asked for CUDA
// before its CUDA library is loaded.
void require_cuda(at::Device device);

// Returns CUDA's handle of the calling thread's current stream; null for the default stream, and on
// the CPU.
void* current_stream(at::Device device);

// Moves the calling thread from the default stream to a stream of LibTorch's pool, which follows
// the work that the default stream was given so far. Does nothing on another stream. For ranks that
// are threads of one GPU: on one default stream their work would not overlap.
void leave_default_stream(at::Device device);

// Makes backward of the calling thread run its nodes in that thread. Otherwise all threads of the
// process share one thread a device, and a hook there that waits for another rank could block that
// rank's own nodes forever.
void run_backward_here(at::Device device);

// Frees the memory that LibTorch's allocator for GPUs caches. Returns false if there is no such
// allocator, as without CUDA.
bool empty_cache();

// Returns the bytes that LibTorch's allocator for GPUs holds of the device, with those it caches.
// Errors: InvalidArgument if there is no allocator that reports them.
int64_t held_bytes(at::Device device);

// A scope whose work has a name in the GPU's profilers (NVTX): "gather encoder.3". Scopes nest; on
// the CPU they do nothing.
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
