#include "engine/buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "comm/mesh_state.h"
#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "libtorch/torch_compat.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

bool is_dense(const at::Tensor& buffer) {
  return buffer.layout() == at::kStrided && !buffer.is_quantized();
}

// Returns a view that contains every element once. Dimensions along which an expanded tensor
// repeats elements (stride 0) are removed.
at::Tensor without_repetition(at::Tensor buffer) {
  for (int64_t d = 0; d < buffer.dim(); ++d) {
    if (buffer.stride(d) == 0 && buffer.size(d) > 1) buffer = buffer.narrow(d, 0, 1);
  }
  return buffer;
}

// Returns the dense tensors of which a sparse or quantised buffer consists.
std::vector<at::Tensor> components(const std::string& fqn, const at::Tensor& buffer) {
  if (buffer.is_quantized()) return {buffer.dequantize()};
  switch (buffer.layout()) {
    case at::kSparse:
      return {buffer._indices(), buffer._values()};
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {buffer.crow_indices(), buffer.col_indices(), buffer.values()};
    case at::kSparseCsc:
    case at::kSparseBsc:
      return {buffer.ccol_indices(), buffer.row_indices(), buffer.values()};
    default:
      throw InvalidArgument(
          {.what = fmt::format("buffer '{}' has layout {}, which ranks cannot compare", fqn,
                               fmt::streamed(buffer.layout())),
           .hint = "register a dense tensor, or do not register the buffer"});
  }
}

uint64_t digest_of(const std::vector<at::Tensor>& tensors) {
  uint64_t digest = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor whole = tensor.to(at::kCPU).contiguous();
    const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (size_t i = 0; i < whole.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3ULL;
  }
  return digest;
}

// Returns the registered dense buffers with their FQNs, each tensor once, in the order of
// registration. The result is the same on every rank, because the handshake has compared the
// buffers.
std::vector<std::pair<std::string, at::Tensor>> dense_buffers(torch::nn::Module& root) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : root.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || !is_dense(buffer) || buffer.numel() == 0) continue;
    if (!seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
    result.emplace_back(item.key(), without_repetition(buffer));
  }
  return result;
}

// Copies rank 0's values into the buffer on every rank. A buffer that is not contiguous is first
// received into a contiguous copy.
void broadcast(const std::string& label, at::Tensor buffer, ShardContext& context) {
  const at::Tensor whole = buffer.contiguous();
  void* data = whole.data_ptr();
  const CollectivePart part{data, data, static_cast<int64_t>(whole.nbytes()), DType::kUInt8};
  // `whole` may be a temporary, so the host blocks until the stream no longer uses it.
  context.streams.settle(*context.streams.gather, [&] {
    context.streams.gather_after_compute();
    context.comms.gather().broadcast(
        {&part, 1}, 0,
        state_of(context.mesh).order().next(Operation::kBroadcast, part.numel, label),
        *context.streams.gather);
  });
  if (!whole.is_same(buffer)) buffer.copy_(whole);
}

}  // namespace

void describe_buffers(torch::nn::Module& root, std::vector<std::string>& lines) {
  for (const auto& item : root.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined()) continue;
    std::string line =
        fmt::format("buffer '{}' [{}] {}", item.key(), fmt::join(buffer.sizes().vec(), ", "),
                    c10::toString(buffer.scalar_type()));
    if (!is_dense(buffer)) {
      line += fmt::format(" {} with content {:016x}", fmt::streamed(buffer.layout()),
                          digest_of(components(item.key(), buffer)));
    }
    lines.push_back(std::move(line));
  }
}

void broadcast_buffers(torch::nn::Module& root, ShardContext& context) {
  if (context.comms.one_rank()) return;
  const at::NoGradGuard no_grad;
  for (const auto& [fqn, buffer] : dense_buffers(root)) broadcast(fqn, buffer, context);
}

void average_buffers(torch::nn::Module& root, ShardContext& context) {
  if (context.comms.one_rank()) return;
  const at::NoGradGuard no_grad;
  constexpr std::array kFloating{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  std::array<std::vector<at::Tensor>, kFloating.size()> floating;
  for (const auto& [fqn, buffer] : dense_buffers(root)) {
    const auto* type = std::find(kFloating.begin(), kFloating.end(), buffer.scalar_type());
    if (type == kFloating.end()) {
      broadcast(fqn, buffer, context);
    } else {
      floating[static_cast<size_t>(type - kFloating.begin())].push_back(buffer);
    }
  }
  // All buffers of a dtype are reduced by one all_reduce, instead of one all_reduce per buffer.
  for (size_t i = 0; i < kFloating.size(); ++i) {
    if (floating[i].empty()) continue;
    std::vector<at::Tensor> flat;
    for (const at::Tensor& buffer : floating[i]) flat.push_back(buffer.reshape({-1}));
    at::Tensor all = at::cat(flat);
    const bool divides = context.comms.reduce().capabilities().averages;
    // The buffers are divided before the sum, as gradients are, so that a dtype with a small range
    // does not overflow.
    if (!divides) all.div_(context.mesh.world_size());
    const CollectivePart part{all.data_ptr(), all.data_ptr(), all.numel(), *dtype_of(kFloating[i])};
    context.streams.settle(*context.streams.reduce, [&] {
      // The reduce stream waits for compute, because it reads the concatenated buffers, which
      // compute has written.
      Event joined(context.streams.device);
      context.streams.compute->record(joined);
      context.streams.reduce->wait(joined);  // wait 16
      context.comms.reduce().all_reduce(
          {&part, 1}, divides ? ReduceOp::kAvg : ReduceOp::kSum,
          state_of(context.mesh).order().next(Operation::kAllReduce, part.numel, "buffers"),
          *context.streams.reduce);
    });
    int64_t offset = 0;
    for (at::Tensor& buffer : floating[i]) {
      buffer.copy_(all.narrow(0, offset, buffer.numel()).view(buffer.sizes()));
      offset += buffer.numel();
    }
  }
}

void Engine::average_buffers() {
  const std::lock_guard lock(state_->scheduler->mutex);
  if (state_->pass.schedule().active_calls() > 0 || state_->scheduler->in_backward()) {
    throw StateError({.what = "average_buffers is not allowed inside a forward or backward",
                      .hint = "call it after the optimizer's step, or before saving"});
  }
  // The mutex stays locked, so no backward can begin on another thread meanwhile.
  state_->follow_compute("average of the buffers");
  with_place([] { return "average of the buffers"; },
             [&] { fsdp::average_buffers(*state_->model.root, *state_->context); });
}

}  // namespace fsdp
