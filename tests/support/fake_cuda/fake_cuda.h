// A fake of LibTorch's CUDA in a process without a GPU. "CUDA" tensors are in host memory, the
// CPU's kernels run on them at once, and streams and events are numbers. The fake records the calls
// that LibTorch makes to CUDA for itself or for the library.
//
// It is registered when the process starts and never removed, so only test programs that use
// nothing else link it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::testing {

inline const c10::Device kGpu(c10::DeviceType::CUDA, 0), kCpu(c10::DeviceType::CPU);

namespace fake_cuda {

// Clears the record, counts streams and events from 1 again, and sets the calling thread on the
// default stream (0). Requires: no earlier stream or event is used again.
void reset();
// Returns and clears the record, in order, of all threads: "record event 1 on stream 0".
std::vector<std::string> take_calls();
// Adds an entry to the record; for kernels.
void note(std::string call);

c10::Stream stream(c10::StreamId id);
c10::StreamId current_stream();

bool is_pinned(const void* data);

// Sets the bytes of the GPU that LibTorch's allocator reports, initially 0. emptyCache clears
// `cached`.
void set_held(int64_t in_use, int64_t cached);

// While an object lives, LibTorch has decided to run without CUDA.
class Absent {
 public:
  Absent();
  ~Absent();
  Absent(const Absent&) = delete;
  Absent& operator=(const Absent&) = delete;
};

// While an object lives, LibTorch reports cuDNN, none of which exists.
class WithCudnn {
 public:
  WithCudnn();
  ~WithCudnn();
  WithCudnn(const WithCudnn&) = delete;
  WithCudnn& operator=(const WithCudnn&) = delete;
};

}  // namespace fake_cuda
}  // namespace fsdp::testing
