#include "fsdp/batch_transfer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "libtorch/torch_cuda.h"

namespace fsdp {
namespace {

// Returns a stream of LibTorch's pool, because LibTorch's allocators can track memory used on such
// a stream. Returns none on the CPU.
std::optional<c10::Stream> copy_stream(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  torch_cuda::require_cuda(device);
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream compute_of_thread(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void check(const at::Tensor& tensor, at::Device device) {
  if (!tensor.device().is_cpu() && tensor.device() != device) {
    throw InvalidArgument(
        {.what = fmt::format("a tensor of a batch is on {}, expected the CPU or {}",
                             tensor.device().str(), device.str()),
         .hint = "make batches on the CPU"});
  }
  if (tensor.requires_grad()) {
    throw InvalidArgument(
        {.what = "a batch contains a tensor that requires grad",
         .cause = "next() returns copies that are detached from the autograd graph",
         .hint = "call requires_grad_() on the tensors that next() returns"});
  }
}

// Returns the tensor in pinned memory, so that the copy to the device can run asynchronously. The
// result has no gaps between elements, because a strided copy would need an intermediate buffer.
at::Tensor pinned(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  return dense.is_pinned() ? dense : dense.pin_memory();
}

}  // namespace

BatchCopies::BatchCopies(at::Device device) : device_(device), stream_(copy_stream(device)) {}

BatchCopies::~BatchCopies() {
  // The destinations of the copies return to LibTorch's allocator. The allocator reuses this memory
  // in the order of the compute stream. Therefore compute waits for the copies of unused batches.
  // Without this wait, a copy could overwrite the data of the memory's next user.
  try {
    while (!copied_.empty()) take();
  } catch (const std::exception&) {  // the next use of the device throws the error
  }
}

void BatchCopies::begin(const std::vector<at::Tensor*>& batch) {
  struct Copy {
    at::Tensor* tensor;
    at::Tensor from, to;
  };
  std::vector<Copy> copies;
  const at::NoGradGuard no_grad;
  for (at::Tensor* tensor : batch) {
    if (!tensor->defined()) continue;
    check(*tensor, device_);
    if (tensor->device() == device_) continue;
    const at::Tensor from = pinned(*tensor);
    copies.push_back({tensor, from, at::empty_like(from, from.options().device(device_))});
  }
  if (!stream_) return;
  // The destinations were allocated for the compute stream. Work issued on compute earlier may
  // still use this memory, and the copy stream does not wait for that work by itself.
  c10::Event given(device_.type());
  given.record(compute_of_thread(device_));
  given.block(*stream_);
  {
    const c10::StreamGuard current(*stream_);
    // copy_ records the use of the pinned memory, so LibTorch reuses this memory only when the copy
    // has finished.
    for (const Copy& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
  }
  copied_.emplace_back(device_.type()).record(*stream_);
  // The batch is changed last. If anything above throws, the batch is unchanged.
  for (const Copy& copy : copies) *copy.tensor = copy.to;
}

void BatchCopies::take() {
  if (!stream_) return;
  copied_.front().block(compute_of_thread(device_));
  copied_.pop_front();
}

}  // namespace fsdp
