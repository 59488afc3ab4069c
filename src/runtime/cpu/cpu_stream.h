// Streams of the host. An inline stream does work at once, in the caller's thread: the compute
// stream is inline, as LibTorch's operators are, and by default all others are, too. A threaded
// stream has a worker thread: communication then overlaps with compute, and tests use it to find
// missing waits.
//
// Only kernels and communicators of the CPU include this.
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

  // Runs the task in stream order; at once if the stream is inline.
  // Requires: objects that the task refers to live until the stream has run it.
  template <class Task>
  void run(Task&& task) {
    if (is_inline()) {
      std::forward<Task>(task)();
    } else {
      call(std::forward<Task>(task));
    }
  }
};

// Casts a stream. Errors: StateError if it belongs to another kind of device.
CpuStream& cpu_stream(Stream& stream);

// Creates a stream. Its worker thread, if any, is named after options.name (the first 15
// characters).
std::unique_ptr<Stream> make_cpu_stream(const Device& device, const StreamOptions& options);

}  // namespace fsdp
