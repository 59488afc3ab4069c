#include "benchmarks/bert_task.h"

#include <torch/torch.h>

#include <string_view>

namespace bert_task {
namespace {

uint32_t scramble(uint32_t value) {
  value ^= value >> 16;
  value *= 0x45D9F3BU;
  return value ^ (value >> 16);
}

uint32_t name_hash(std::string_view name) {
  uint32_t hash = 2166136261U;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619U;
  return hash;
}

}  // namespace

void set_initial_values(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters()) {
    at::Tensor& tensor = parameter.value();
    if (tensor.dim() == 1) {
      tensor.fill_(parameter.key().ends_with("bias") ? 0.0 : 1.0);
      continue;
    }
    const uint32_t salt = name_hash(parameter.key());
    auto* values = tensor.data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const uint32_t bits = scramble(static_cast<uint32_t>(i) * 2654435761U + salt);
      values[i] = static_cast<float>((bits / 4294967296.0 - 0.5) * 0.07);
    }
    torch::autograd::impl::bump_version(tensor);  // the engine detects writes by the version
  }
}

Windows windows_of(int64_t count, int64_t tokens, int rank) {
  Windows made{.ids = torch::empty({count, tokens}, torch::kLong)};
  auto* ids = made.ids.data_ptr<int64_t>();
  const auto base = static_cast<uint32_t>(rank * count * tokens);
  for (int64_t i = 0; i < made.ids.numel(); ++i) {
    ids[i] = 1000 + scramble(base + static_cast<uint32_t>(i)) % 28000;
  }
  made.segments = torch::zeros_like(made.ids);
  made.mask = torch::ones_like(made.ids);
  made.first = made.ids.select(1, 0) % (tokens / 2);
  made.last = made.first + made.ids.select(1, 1) % (tokens / 2);
  return made;
}

Windows to_device(const Windows& windows, at::Device device) {
  return {.ids = windows.ids.to(device),
          .segments = windows.segments.to(device),
          .mask = windows.mask.to(device),
          .first = windows.first.to(device),
          .last = windows.last.to(device)};
}

}  // namespace bert_task
