// Measures the machine's rates, and compares AdamW with LibTorch's AdamW.
#include <fsdp/error.h>
#include <torch/torch.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu_probe/probe.h"
#include "comm/mesh_state.h"
#include "kernels/element/count_steps.h"
#include "kernels/update.h"
#include "runtime/device.h"
#include "runtime/dtype.h"

namespace gpu_probe {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kRate = 1e-5, kDecay = 0.01, kEps = 1e-8;
constexpr int64_t kStep = 10;

// Parameters with their optimizer state, cut into units of equal size. The remainder is left out.
class AdamWShard {
 public:
  AdamWShard(const Place& place, int64_t numel, int64_t units)
      : unit_numel_(numel / units),
        stream_(
            state_of(place.alone).device().make_stream({.name = "adamw", .runs_beside = false})),
        step_(step_count().to(place.device)),
        torch_step_(torch::full({}, static_cast<float>(kStep), on(place, torch::kFloat))),
        copy_(torch::empty({unit_numel_ * units}, on(place, torch::kBFloat16))) {
    for (double value : {0.5, 0.01, 0.002, 0.0001}) {
      arrays_.push_back(torch::full({unit_numel_ * units}, value, on(place, torch::kFloat)));
    }
    for (int64_t unit = 0; unit < units; ++unit) {
      for (size_t i = 0; i < arrays_.size(); ++i) {
        lists_[i].push_back(arrays_[i].narrow(0, unit * unit_numel_, unit_numel_));
      }
      steps_.push_back(torch_step_);
    }
  }

  int64_t numel() const { return copy_.numel(); }
  const at::Tensor& parameters() const { return arrays_[0]; }
  const at::Tensor& copy() const { return copy_; }

  void update_ours(bool with_copy) {
    std::vector<fsdp::kernels::UpdateSegment> segments;
    for (size_t unit = 0; unit < steps_.size(); ++unit) {
      void* const narrow = copy_.data_ptr<at::BFloat16>() + unit * unit_numel_;
      segments.push_back(
          {.param = lists_[0][unit].data_ptr<float>(),
           .grad = lists_[1][unit].data_ptr<float>(),
           .moments = {lists_[2][unit].data_ptr<float>(), lists_[3][unit].data_ptr<float>()},
           .low_precision_copy = with_copy ? narrow : nullptr,
           .numel = unit_numel_,
           .lr = kRate,
           .weight_decay = kDecay,
           .step = static_cast<const fsdp::kernels::StepCount*>(step_.data_ptr())});
    }
    fsdp::kernels::update(*stream_, segments, fsdp::kernels::AdamW{});
  }

  void update_torch(bool with_copy) {
    at::_fused_adamw_(lists_[0], lists_[1], lists_[2], lists_[3], {}, steps_, kRate, kBeta1, kBeta2,
                      kDecay, kEps, /*amsgrad=*/false, /*maximize=*/false);
    if (with_copy) copy_.copy_(arrays_[0]);
  }

 private:
  static at::TensorOptions on(const Place& place, at::ScalarType type) {
    return torch::dtype(type).device(place.device);
  }
  static at::Tensor step_count() {
    const auto count = fsdp::kernels::count_at(kStep, {.beta1 = kBeta1, .beta2 = kBeta2});
    const at::Tensor bytes = torch::empty({static_cast<int64_t>(sizeof count)}, torch::kByte);
    std::memcpy(bytes.data_ptr(), &count, sizeof count);
    return bytes;
  }

  const int64_t unit_numel_;
  const std::unique_ptr<fsdp::Stream> stream_;
  const at::Tensor step_, torch_step_, copy_;
  std::vector<at::Tensor> arrays_;  // parameter, gradient, first and second moment
  std::vector<at::Tensor> lists_[4], steps_;
};

// Throws if the two results differ, because the time of a wrong result is meaningless.
void require_alike(const Place& place) {
  AdamWShard ours(place, 10'000, 3), theirs(place, 10'000, 3);
  synchronize(place);
  ours.update_ours(/*with_copy=*/true);
  theirs.update_torch(/*with_copy=*/true);
  synchronize(place);
  if (at::allclose(ours.parameters(), theirs.parameters(), 1e-6, 0) &&
      at::allclose(ours.copy(), theirs.copy(), 1e-2, 0)) {
    return;
  }
  throw fsdp::StateError(
      {.what = "the results of fsdp's and LibTorch's AdamW differ", .where = "gpu_probe adamw"});
}

}  // namespace

void serve_rates(const Place& place, const Words& words) {
  const int64_t numel = std::stoll(words[0]), size = std::stoll(words[1]);
  const auto options = torch::dtype(torch::kFloat).device(place.device);
  const at::Tensor from = torch::ones({numel}, options), to = torch::empty({numel}, options);
  const at::Tensor square = torch::ones({size, size}, options.dtype(torch::kBFloat16));
  at::Tensor product = torch::empty_like(square);
  const double flops = 2.0 * static_cast<double>(size * size * size);
  serve({{"copy", rate_of(place, static_cast<double>(numel) * 8e-9, [&] { to.copy_(from); })},
         {"matrix", rate_of(place, flops * 1e-12, [&] { at::mm_out(product, square, square); })}});
}

void serve_adamw(const Place& place, const Words& words) {
  require_alike(place);
  AdamWShard shard(place, std::stoll(words[0]), std::stoll(words[1]));
  // For each element the kernel reads 4 floats and writes 3. The copy adds 2 bytes.
  const double plain = static_cast<double>(shard.numel()) * 28e-9;
  const double copied = static_cast<double>(shard.numel()) * 30e-9;
  serve({{"ours", rate_of(place, plain, [&] { shard.update_ours(false); })},
         {"ours_copy", rate_of(place, copied, [&] { shard.update_ours(true); })},
         {"torch", rate_of(place, plain, [&] { shard.update_torch(false); })},
         {"torch_copy", rate_of(place, copied, [&] { shard.update_torch(true); })}});
}

}  // namespace gpu_probe
