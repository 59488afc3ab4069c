#include "runtime/cuda/cuda_device.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/cuda/cuda_error.h"

namespace fsdp {
namespace {

cudaStream_t make_handle(StreamPriority priority) {
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
             "cudaDeviceGetStreamPriorityRange");
  cudaStream_t handle = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking,
                                          priority == StreamPriority::kHigh ? highest : lowest),
             "cudaStreamCreateWithPriority");
  return handle;
}

// What is queued is done before the handle goes: destroying it would let the work go on alone.
void destroy(cudaStream_t handle) noexcept {
  static_cast<void>(cudaStreamSynchronize(handle));
  static_cast<void>(cudaStreamDestroy(handle));
}

class OwnCudaStream final : public CudaStream {
 public:
  using CudaStream::CudaStream;
  ~OwnCudaStream() override { destroy(handle()); }
};

}  // namespace

CudaDevice::CudaDevice(int ordinal, const kernels::KernelTable& table)
    : ordinal_(ordinal), name_(fmt::format("cuda:{}", ordinal)), kernels_(table) {
  const CudaScope scope(ordinal);
  zeroing_ = make_handle(StreamPriority::kNormal);
}

CudaDevice::~CudaDevice() { destroy(zeroing_); }

std::unique_ptr<Stream> CudaDevice::make_stream(const StreamOptions& options) const {
  const CudaScope scope(ordinal_);
  return std::make_unique<OwnCudaStream>(*this, make_handle(options.priority));
}

Stream& CudaDevice::compute_stream(void* native) const {
  auto* handle = static_cast<cudaStream_t>(native);
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
  if (kind != MemoryKind::kDevice) {
    check_cuda(cudaHostAlloc(&data, size, cudaHostAllocDefault),
               fmt::format("cudaHostAlloc of {} bytes on {}", bytes, name_));
    std::memset(data, 0, size);
    return {data, bytes, [](void* pinned) { static_cast<void>(cudaFreeHost(pinned)); }};
  }
  check_cuda(cudaMalloc(&data, size), fmt::format("cudaMalloc of {} bytes on {}", bytes, name_));
  Buffer memory(data, bytes, [](void* gone) { static_cast<void>(cudaFree(gone)); });
  check_cuda(cudaMemsetAsync(data, 0, size, zeroing_), "cudaMemsetAsync");
  check_cuda(cudaStreamSynchronize(zeroing_), "cudaStreamSynchronize");
  return memory;
}

CudaEvent CudaDevice::take_event() const {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return CudaEvent();
  CudaEvent event = std::move(events_.back());
  events_.pop_back();
  return event;
}

void CudaDevice::give_event(CudaEvent event) const noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

}  // namespace fsdp
