#include "fsdp/batch_transfer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "libtorch/torch_cuda.h"

namespace fsdp {
namespace {

// Returns a stream of LibTorch's pool, whose allocators can track its use of memory; none on the
// CPU.
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
    throw InvalidArgument({.what = "a tensor of a batch requires a gradient",
                           .cause = "next() returns a copy outside the graph",
                           .hint = "call requires_grad_() on what next() returned"});
  }
}

// Returns the tensor in pinned memory, from which the device copies without the host, and without
// gaps between elements: a strided copy would go through an intermediate buffer.
at::Tensor pinned(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  return dense.is_pinned() ? dense : dense.pin_memory();
}

}  // namespace

BatchCopies::BatchCopies(at::Device device) : device_(device), stream_(copy_stream(device)) {}

BatchCopies::~BatchCopies() {
  // The destinations return to LibTorch's allocator, which reuses them in compute's order. So
  // compute waits for copies that were not taken, or they could overwrite the next user's data.
  try {
    while (!copied_.empty()) take();
  } catch (const std::exception&) {  // the next use of the device throws it
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
  // The destinations are compute's memory. Work that compute was given earlier may still use it,
  // and the copy stream is not ordered after that work by itself.
  c10::Event given(device_.type());
  given.record(compute_of_thread(device_));
  given.block(*stream_);
  {
    const c10::StreamGuard current(*stream_);
    // copy_ records this use of the pinned memory: LibTorch reuses the memory when the copy is
    // done.
    for (const Copy& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
  }
  copied_.emplace_back(device_.type()).record(*stream_);
  // Last, so that the batch is unchanged if anything above throws.
  for (const Copy& copy : copies) *copy.tensor = copy.to;
}

void BatchCopies::take() {
  if (!stream_) return;
  copied_.front().block(compute_of_thread(device_));
  copied_.pop_front();
}

}  // namespace fsdp
