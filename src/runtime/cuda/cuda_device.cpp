#include "runtime/cuda/cuda_device.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "runtime/span_log.h"

namespace fsdp {
namespace {

// Each CudaClock is used for kClockLife. CUDA reports times as a float of milliseconds, which is
// exact to 60 ns within this time. A new clock is normally set from the former clock. But if the
// former clock is older than kChainedLife, the new clock is set from the host's clock, because the
// float's error is then larger than the error of the host's clock.
constexpr int64_t kClockLife = 1'000'000'000;  // ns
constexpr int64_t kChainedLife = 10 * kClockLife;

// A CudaStream that owns its CUDA stream. `own_` is destroyed first, and its destructor
// synchronizes the CUDA stream. Then the base class drops the functions that call() has queued and
// that have not run.
class OwnCudaStream final : public CudaStream {
 public:
  OwnCudaStream(const CudaDevice& device, CudaStreamHandle own)
      : CudaStream(device, own.get()), own_(std::move(own)) {}

 private:
  const CudaStreamHandle own_;
};

}  // namespace

CudaDevice::CudaDevice(int ordinal, const kernels::KernelTable& table)
    : ordinal_(ordinal), name_(fmt::format("cuda:{}", ordinal)), kernels_(table) {
  const CudaScope scope(ordinal);
  zeroing_.emplace(ordinal, StreamPriority::kNormal);
}

CudaDevice::~CudaDevice() = default;

std::unique_ptr<Stream> CudaDevice::make_stream(const StreamOptions& options) const {
  const CudaScope scope(ordinal_);
  return std::make_unique<OwnCudaStream>(*this, CudaStreamHandle(ordinal_, options.priority));
}

Stream& CudaDevice::compute_stream(void* native) const {
  auto* handle = static_cast<cudaStream_t>(native);
  // The object for a handle is kept as long as the device exists, because callers keep references
  // to it.
  const std::lock_guard lock(mutex_);
  auto& stream = compute_streams_[handle];
  if (!stream) stream = std::make_unique<CudaStream>(*this, handle);
  return *stream;
}

Buffer CudaDevice::allocate(int64_t bytes, MemoryKind kind) const {
  if (bytes == 0) return {};
  const CudaScope scope(ordinal_);
  const auto size = static_cast<size_t>(bytes);
  void* data = nullptr;
  // Both kinds of host memory are pinned. CUDA copies from unpinned host memory only through a
  // staging buffer.
  if (kind != MemoryKind::kDevice) {
    check_cuda(cudaHostAlloc(&data, size, cudaHostAllocDefault),
               fmt::format("cudaHostAlloc of {} bytes on {}", bytes, name_));
    // cudaHostAlloc does not zero the memory.
    std::memset(data, 0, size);
    return {data, bytes, [ordinal = ordinal_](void* pinned) {
              const CudaScope scope(ordinal, std::nothrow);
              forget_cuda(cudaFreeHost(pinned));
            }};
  }
  check_cuda(cudaMalloc(&data, size), fmt::format("cudaMalloc of {} bytes on {}", bytes, name_));
  // The buffer owns the memory from here on, so an error below frees it.
  Buffer memory(data, bytes, [ordinal = ordinal_](void* gone) {
    const CudaScope scope(ordinal, std::nothrow);
    forget_cuda(cudaFree(gone));
  });
  // Wait until the memory is zeroed, because the caller may use it on any stream.
  check_cuda(cudaMemsetAsync(data, 0, size, zeroing_->get()), "cudaMemsetAsync");
  check_cuda(cudaStreamSynchronize(zeroing_->get()), "cudaStreamSynchronize");
  return memory;
}

void CudaDevice::drain() const noexcept {
  const CudaScope scope(ordinal_, std::nothrow);
  // Clear an error and do not report it, because drain() is called on error paths, which already
  // report the first cause.
  forget_cuda(cudaDeviceSynchronize());
}

void CudaDevice::make_current() const { check_cuda(cudaSetDevice(ordinal_), "cudaSetDevice"); }

void CudaDevice::fail_waits(const std::exception_ptr& why) const noexcept {
  const std::lock_guard lock(mutex_);
  // The first failure is kept, because later failures follow from it.
  if (waits_fail_) return;
  // `why_` is set before the flag, because require_trusted reads it without the lock.
  why_ = why;
  waits_fail_ = true;
}

void CudaDevice::require_trusted() const {
  if (waits_fail_) std::rethrow_exception(why_);
}

int64_t CudaClock::time_of(cudaEvent_t event) const {
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, zero.get(), event), "cudaEventElapsedTime");
  return zero_ns + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
}

std::shared_ptr<const CudaClock> CudaDevice::clock() const {
  const std::lock_guard lock(mutex_);
  if (clock_ && span_clock_ns() - clock_->zero_ns < kClockLife) return clock_;
  const CudaScope scope(ordinal_);
  // A new CudaClock is made and the old one is not changed, because pending spans still use the
  // clock with which they began.
  auto clock = std::make_shared<CudaClock>(ordinal_);
  check_cuda(cudaEventRecord(clock->zero.get(), zeroing_->get()), "cudaEventRecord");
  check_cuda(cudaEventSynchronize(clock->zero.get()), "cudaEventSynchronize");
  const int64_t now = span_clock_ns();
  // If the former clock is not too old, the zero of the new clock is computed from the former
  // clock. So a span that begins before the change of clocks and ends after it has the right
  // length.
  const bool is_chained = clock_ && now - clock_->zero_ns < kChainedLife;
  clock->zero_ns = is_chained ? clock_->time_of(clock->zero.get()) : now;
  clock_ = clock;
  return clock_;
}

CudaEvent CudaDevice::take_event() const {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return CudaEvent(ordinal_);
  CudaEvent event = std::move(events_.back());
  events_.pop_back();
  return event;
}

void CudaDevice::give_event(CudaEvent event) const noexcept {
  const std::lock_guard lock(mutex_);
  try {
    events_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {  // the event is destroyed, and the pool stays smaller
  }
}

}  // namespace fsdp
