// A fake of LibTorch's CUDA in a process without a GPU. "CUDA" tensors are in host memory, CPU
// kernels process them at once, and streams and events are numbers. The fake records the CUDA calls
// that LibTorch makes for itself or for the library.
//
// The fake is registered when the process starts and is never removed. So only test programs that
// need nothing else may link it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::testing {

inline const c10::Device kGpu(c10::DeviceType::CUDA, 0), kCpu(c10::DeviceType::CPU);

namespace fake_cuda {

// Clears the record, restarts the numbers of streams and events at 1, and sets the calling thread
// to the default stream (0). Requires: the caller no longer uses an earlier stream or event.
void reset();
// Returns the record of all threads in order and clears it. An entry reads "record event 1 on
// stream 0".
std::vector<std::string> take_calls();
// Adds an entry to the record. The fake's kernels call it.
void note(std::string call);

c10::Stream stream(c10::StreamId id);
c10::StreamId current_stream();

bool is_pinned(const void* data);

// Sets the bytes that LibTorch's GPU allocator reports. They are 0 at first. emptyCache sets
// `cached` to 0.
void set_held(int64_t in_use, int64_t cached);

// While an object of this class exists, LibTorch reports that CUDA is not available.
class Absent {
 public:
  Absent();
  ~Absent();
  Absent(const Absent&) = delete;
  Absent& operator=(const Absent&) = delete;
};

// While an object of this class exists, LibTorch reports that cuDNN is available, although it is
// not.
class WithCudnn {
 public:
  WithCudnn();
  ~WithCudnn();
  WithCudnn(const WithCudnn&) = delete;
  WithCudnn& operator=(const WithCudnn&) = delete;
};

}  // namespace fake_cuda
}  // namespace fsdp::testing
