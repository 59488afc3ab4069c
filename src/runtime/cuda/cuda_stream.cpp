#include "runtime/cuda/cuda_stream.h"

#include <fmt/format.h>

#include <utility>

#include "fsdp/error.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_error.h"

namespace fsdp {

namespace {

// Queries an event in relaxed capture mode. In the default mode, the query would fail while another
// thread captures a CUDA graph in global mode, and would also invalidate that capture.
cudaError_t query_beside_captures(cudaEvent_t event) {
  constexpr char kCall[] = "cudaThreadExchangeStreamCaptureMode";
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), kCall);
  const cudaError_t code = cudaEventQuery(event);
  // `mode` now holds the thread's former mode. The former mode is restored even if the query
  // failed.
  const cudaError_t restored = cudaThreadExchangeStreamCaptureMode(&mode);
  if (code == cudaSuccess || code == cudaErrorNotReady) check_cuda(restored, kCall);
  return code;
}

}  // namespace

// A point in a stream's work. It holds an event of the device's pool, which is recorded once and
// returned by the destructor.
class CudaMark final : public EventMark {
 public:
  CudaMark(const CudaDevice& device, cudaStream_t stream)
      : device_(device), stream_(stream), event_(device.take_event()) {
    check_cuda(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
  }
  ~CudaMark() override { device_.give_event(std::move(event_)); }

  void wait() override {
    const CudaScope scope(device_.ordinal());
    check_cuda(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
    // The stream has reached the point. But if another rank has died, the results of the work
    // before the point may be wrong, so the call throws.
    device_.require_trusted();
  }
  bool reached() override {
    const CudaScope scope(device_.ordinal());
    const cudaError_t code = query_beside_captures(event_.get());
    if (code == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // or LibTorch would report it after its next launch
      return false;
    }
    check_cuda(code, "cudaEventQuery");
    return true;
  }
  cudaStream_t stream() const { return stream_; }
  cudaEvent_t event() const { return event_.get(); }

 private:
  const CudaDevice& device_;
  const cudaStream_t stream_;
  CudaEvent event_;
};

CudaStream::CudaStream(const CudaDevice& device, cudaStream_t handle)
    : Stream(device), device_(device), handle_(handle) {}

CudaStream::~CudaStream() = default;

int CudaStream::ordinal() const { return device_.ordinal(); }

std::shared_ptr<CudaMark> CudaStream::make_mark() {
  const CudaScope scope(ordinal());
  return std::make_shared<CudaMark>(device_, handle_);
}

std::shared_ptr<EventMark> CudaStream::mark(CodePlace) {
  // Make the calls whose marks are already reached, because there is no separate thread for calls
  // ([Note: calls in stream order]).
  make_due_calls();
  return make_mark();
}

void CudaStream::wait_for(const std::shared_ptr<EventMark>& mark, CodePlace) {
  const auto& reached = static_cast<const CudaMark&>(*mark);
  if (reached.stream() == handle_) return;  // a stream already orders its own work
  const CudaScope scope(ordinal());
  check_cuda(cudaStreamWaitEvent(handle_, reached.event(), 0), "cudaStreamWaitEvent");
}

void CudaStream::synchronize() {
  const CudaScope scope(ordinal());
  check_cuda(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
  device_.require_trusted();
  make_due_calls();
}

void CudaStream::read(void* to, const void* from, int64_t bytes) {
  // With 0 bytes, too, read() must return only after all issued work is done.
  if (bytes == 0) return synchronize();
  const CudaScope scope(ordinal());
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, handle_),
             fmt::format("cudaMemcpyAsync of {} bytes to the host", bytes));
  synchronize();
}

void CudaStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const CudaScope scope(ordinal());
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, handle_),
             fmt::format("cudaMemcpyAsync of {} bytes", bytes));
}

void CudaStream::call(std::function<void()> on_host) {
  make_due_calls();
  // The lock keeps calls in the order of their marks, also if two threads share the stream.
  const std::lock_guard lock(mutex_);
  calls_.push_back({make_mark(), std::move(on_host)});
}

void CudaStream::tell_time(std::function<void(int64_t ns)> tell) {
  // Events of the pool have no timing, so a new event is made. The queued call keeps the clock and
  // the event alive until it runs.
  auto clock = device_.clock();
  const CudaScope scope(ordinal());
  auto here = std::make_shared<CudaEvent>(ordinal(), CudaTiming::kOn);
  check_cuda(cudaEventRecord(here->get(), handle_), "cudaEventRecord");
  call([clock, here, tell = std::move(tell)] { tell(clock->time_of(here->get())); });
}

// Makes all calls whose marks are reached, in the order of issue. Engines of several threads may
// share a stream, so only one thread makes calls at a time, and other threads wait. Without this
// rule, an engine could return from synchronize() and be destroyed while another thread still makes
// a call of this engine.
void CudaStream::make_due_calls() {
  const std::lock_guard making(making_);
  for (;;) {
    Call due;
    {
      const std::lock_guard lock(mutex_);
      if (calls_.empty() || !calls_.front().when->reached()) return;
      due = std::move(calls_.front());
      calls_.pop_front();
    }
    // The call runs without `mutex_`, because it may issue to this stream.
    due.on_host();
  }
}

CudaStream& cuda_stream(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) {
    throw StateError({.what = "a CUDA kernel got the stream of another device",
                      .hint = "put the engine, the mesh and the module on one kind of device"});
  }
  return *cuda;
}

}  // namespace fsdp
