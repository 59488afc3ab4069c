// LibTorch's side of a GPU in a process that has none. "CUDA" tensors lie in the host's memory,
// their kernels are the CPU's and done at once, streams and events are numbers; what LibTorch, or
// the library through it, asks of CUDA is kept.
//
// It is registered when the process starts and for good, so only test programs that want nothing
// else link it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::testing {

inline const c10::Device kGpu(c10::DeviceType::CUDA, 0), kCpu(c10::DeviceType::CPU);

namespace fake_cuda {

// Forgets what was kept, counts streams and events from 1 again, and sets the calling thread on the
// default stream (0). Requires: no stream or event of before is used again.
void reset();
// What was asked since, in order, of all threads: "record event 1 on stream 0".
std::vector<std::string> take_calls();
// Another word for it: for kernels.
void note(std::string call);

c10::Stream stream(c10::StreamId id);
c10::StreamId current_stream();

bool is_pinned(const void* data);

// What LibTorch's allocator says that it holds of the GPU, 0 until it is told: with `cached`, which
// goes when its cache is emptied.
void set_held(int64_t in_use, int64_t cached);

// While it lives LibTorch has decided to do without CUDA.
class Absent {
 public:
  Absent();
  ~Absent();
  Absent(const Absent&) = delete;
  Absent& operator=(const Absent&) = delete;
};

// While it lives LibTorch has cuDNN, of which nothing is there.
class WithCudnn {
 public:
  WithCudnn();
  ~WithCudnn();
  WithCudnn(const WithCudnn&) = delete;
  WithCudnn& operator=(const WithCudnn&) = delete;
};

}  // namespace fake_cuda
}  // namespace fsdp::testing
