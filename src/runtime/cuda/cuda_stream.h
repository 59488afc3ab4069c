// Streams of a GPU. Work is issued by the caller's thread and done later; only synchronize, read
// and an event's synchronize make the host wait.
//
// CUDA's kernels alone include this.
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

class CudaStream : public Stream {
 public:
  // Of a stream that lives as long: LibTorch's, or one that OwnCudaStream made.
  CudaStream(const CudaDevice& device, cudaStream_t handle);
  // What was called or held and is not due yet is dropped: who destroys a stream has synchronized.
  ~CudaStream() override;

  cudaStream_t handle() const { return handle_; }
  void* native() const override { return handle_; }
  // The device's number.
  int ordinal() const;

  void synchronize() override;
  void read(void* to, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  bool is_inline() const override { return false; }
  // [Note: what waits for a stream]
  // Not CUDA's host functions: those run on a thread of the driver, which must not be blocked, and
  // order the stream behind the host. Calls are kept beside a mark and made by the thread that
  // issues to this stream next, or that synchronizes it, once the mark is reached.
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
  std::recursive_mutex making_;  // calls
  std::mutex mutex_;             // of what follows
  std::deque<Call> calls_;
};

// Errors: StateError if the stream belongs to another kind of device.
CudaStream& cuda_stream(Stream& stream);

}  // namespace fsdp
