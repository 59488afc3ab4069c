// LibTorch's side of a GPU: on which stream its operators run, and where backward does. Through
// c10's interface of all devices, so that nothing of CUDA is linked; on the CPU there is nothing to
// ask.
#pragma once

#include <c10/core/Device.h>

namespace fsdp::torch_cuda {

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

}  // namespace fsdp::torch_cuda
