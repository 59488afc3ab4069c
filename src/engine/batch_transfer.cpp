#include "fsdp/batch_transfer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "libtorch/torch_cuda.h"

namespace fsdp {
namespace {

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

// Memory that the device copies from by itself, without gaps between the elements.
at::Tensor pinned(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  return dense.is_pinned() ? dense : dense.pin_memory();
}

}  // namespace

BatchCopies::BatchCopies(at::Device device) : device_(device), stream_(copy_stream(device)) {}

BatchCopies::~BatchCopies() {
  try {
    while (!copied_.empty()) take();
  } catch (const std::exception&) {  // who works with the device hears of it
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
  // Of compute's memory, which compute may still be using for what lay there before.
  c10::Event given(device_.type());
  given.record(compute_of_thread(device_));
  given.block(*stream_);
  {
    const c10::StreamGuard current(*stream_);
    // LibTorch records this use of the pinned memory, and hands it out again when that is over.
    for (const Copy& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
  }
  copied_.emplace_back(device_.type()).record(*stream_);
  for (const Copy& copy : copies) *copy.tensor = copy.to;
}

void BatchCopies::take() {
  if (!stream_) return;
  copied_.front().block(compute_of_thread(device_));
  copied_.pop_front();
}

}  // namespace fsdp
