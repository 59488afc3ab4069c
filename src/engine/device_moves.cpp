#include "engine/device_moves.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

void move(std::string_view what, const std::string& fqn, at::Tensor tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return;
  if (!tensor.device().is_cpu()) {
    throw InvalidArgument(
        {.what = fmt::format("{} '{}' is on {}, but the mesh computes on {}", what, fqn,
                             tensor.device().str(), device.str()),
         .hint = "build the model on the CPU: the engine moves it, unit by unit"});
  }
  tensor.set_data(tensor.to(device));  // keeps the TensorImpl
}

}  // namespace

void move_parameters(const std::vector<FoundParameter>& parameters, const ShardContext& context) {
  const at::NoGradGuard no_grad;
  for (const FoundParameter& found : parameters) {
    move("parameter", found.fqn, found.tensor, context.streams.torch_device);
  }
}

void move_rest(torch::nn::Module& root, const ShardContext& context) {
  const at::NoGradGuard no_grad;
  for (const auto& item : root.named_parameters()) {
    move("parameter", item.key(), item.value(), context.streams.torch_device);
  }
  for (const auto& item : root.named_buffers()) {
    move("buffer", item.key(), item.value(), context.streams.torch_device);
  }
}

}  // namespace fsdp
