// Accesses LibTorch's GPU state: the stream of its operators, the thread of its backward, and its
// memory. All calls use c10's device-independent interface, so no CUDA library is linked. On the
// CPU the calls do nothing.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

namespace fsdp::torch_cuda {

// Throws StateError if LibTorch runs without CUDA. LibTorch runs without CUDA permanently if it is
// asked for CUDA before its CUDA library is loaded.
void require_cuda(at::Device device);

// Returns CUDA's handle of the calling thread's current stream. Returns null for the default stream
// and on the CPU.
void* current_stream(at::Device device);

// Moves the calling thread from the default stream to a stream of LibTorch's pool. The new stream
// first waits for the work issued to the default stream so far. Does nothing if the thread is on
// another stream. Needed for thread ranks that share one GPU, because on one default stream their
// work would not overlap.
void leave_default_stream(at::Device device);

// Makes autograd run backward in the calling thread if this thread starts it. Without this call,
// all threads of the process share one autograd thread per device. If a hook in the shared thread
// waits for another rank, it could block the nodes of that rank forever.
void run_backward_here(at::Device device);

// Frees the memory that LibTorch's GPU allocator caches. Returns false if there is no such
// allocator, for example without CUDA.
bool empty_cache();

// Returns the device bytes that LibTorch's GPU allocator holds, including cached bytes.
// Errors: InvalidArgument if there is no allocator that reports them.
int64_t held_bytes(at::Device device);

// A scope that names its work in GPU profilers (NVTX): "gather encoder.3". Scopes may be nested. On
// the CPU a scope does nothing.
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
