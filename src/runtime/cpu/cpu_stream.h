// Streams of the host. An inline one runs work at once, in the caller's thread: the compute stream
// is (LibTorch's operators are), and by default all others are. A threaded one has a worker thread:
// communication then overlaps with compute, and the tests use it to find waits that are missing.
//
// Kernels and communicators of the CPU alone include this.
#pragma once

#include <memory>
#include <utility>

#include "runtime/device.h"
#include "runtime/stream.h"

namespace fsdp {

class CpuStream : public Stream {
 public:
  using Stream::Stream;

  void read(void* to, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void tell_time(std::function<void(int64_t ns)> tell) override;

  // Runs the task in stream order; at once if the stream is inline. What the task refers to must
  // live until the stream has passed it.
  template <class Task>
  void run(Task&& task) {
    if (is_inline()) {
      std::forward<Task>(task)();
    } else {
      call(std::forward<Task>(task));
    }
  }
};

// Errors: StateError if the stream belongs to another kind of device.
CpuStream& cpu_stream(Stream& stream);

// A worker thread has the options' name (at most 15 characters of it count).
std::unique_ptr<Stream> make_cpu_stream(const Device& device, const StreamOptions& options);

}  // namespace fsdp
