// Streams of the host. A stream is inline or threaded. An inline stream does work at once, in the
// caller's thread. The compute stream is inline, because LibTorch's operators run in the calling
// thread. By default all other streams are inline, too. A threaded stream has a worker thread, so
// communication overlaps with compute. Tests use threaded streams to find missing waits.
//
// Only CPU kernels and CPU communicators include this header.
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

  // Runs the task in stream order. If the stream is inline, runs it at once.
  // Requires: the objects to which the task refers exist until the stream has run the task.
  template <class Task>
  void run(Task&& task) {
    if (is_inline()) {
      std::forward<Task>(task)();
    } else {
      call(std::forward<Task>(task));
    }
  }
};

// Casts `stream`. Errors: StateError if the stream belongs to another kind of device.
CpuStream& cpu_stream(Stream& stream);

// Creates a stream. If the stream has a worker thread, the first 15 characters of options.name are
// the thread's name.
std::unique_ptr<Stream> make_cpu_stream(const Device& device, const StreamOptions& options);

}  // namespace fsdp
