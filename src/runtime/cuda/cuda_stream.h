// Streams of a GPU. Their functions issue work and return before the work is done. Only
// synchronize, read and Event::synchronize block the host.
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
  // Wraps a stream of LibTorch, or the stream that OwnCudaStream owns. Requires: the wrapped stream
  // outlives this object.
  CudaStream(const CudaDevice& device, cudaStream_t handle);
  // Drops the functions that were passed to call() and have not run yet. Releases the memory that
  // hold() keeps. Requires: the stream was synchronized.
  ~CudaStream() override;

  cudaStream_t handle() const { return handle_; }
  void* native() const override { return handle_; }
  // Returns the number of the device.
  int ordinal() const;

  void synchronize() override;
  void read(void* to, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  bool is_inline() const override { return false; }
  // [Note: calls in stream order] call() does not use CUDA host functions. They run on a thread of
  // the driver, which must not block, and the stream waits until they return. Instead, call()
  // queues the function together with a CUDA event that it records on the stream. Once the event
  // has completed, the next thread that issues work to this stream or synchronizes it calls the
  // function.
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

// Casts `stream`. Errors: StateError if the stream belongs to another kind of device.
CudaStream& cuda_stream(Stream& stream);

}  // namespace fsdp
