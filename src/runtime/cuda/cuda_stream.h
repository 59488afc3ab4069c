// Streams of a GPU. A call issues work and returns before the work is done. Only synchronize, read
// and an event's synchronize block the host.
//
// Only CUDA code includes this header.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/stream.h"

namespace fsdp {

class CudaDevice;
class CudaMark;

// A CUDA stream as a Stream.
class CudaStream : public Stream {
 public:
  // Wraps a stream of LibTorch, or the stream that OwnCudaStream owns. Requires: it outlives this
  // object.
  CudaStream(const CudaDevice& device, cudaStream_t handle);
  // Drops calls that were not made yet and releases memory that is still held. Requires: the stream
  // was synchronized.
  ~CudaStream() override;

  cudaStream_t handle() const { return handle_; }
  void* native() const override { return handle_; }
  // Returns the number of the device.
  int ordinal() const;

  void synchronize() override;
  void read(void* to, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  bool is_inline() const override { return false; }
  // [Note: calls in stream order]
  // Calls are not CUDA host functions. Host functions run on a thread of the driver, which must not
  // block, and they make the stream wait for the host. Instead, a call is queued with a mark. After
  // the mark is reached, the next thread that issues to this stream or synchronizes it makes the
  // call.
  void call(std::function<void()> on_host) override;
  void tell_time(std::function<void(int64_t ns)> tell) override;

 protected:
  std::shared_ptr<EventMark> mark(CodePlace place) override;
  void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) override;

 private:
  struct Call {
    std::shared_ptr<CudaMark> when;
    std::function<void()> on_host;
  };
  std::shared_ptr<CudaMark> make_mark();
  void make_due_calls();

  const CudaDevice& device_;
  const cudaStream_t handle_;
  std::recursive_mutex making_;  // serializes calls; a call may issue again
  std::mutex mutex_;             // guards the member below
  std::deque<Call> calls_;
};

// Casts a stream. Errors: StateError if it belongs to another kind of device.
CudaStream& cuda_stream(Stream& stream);

}  // namespace fsdp
