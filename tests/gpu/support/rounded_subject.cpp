// A model that contains only elementwise operators. It computes sums by repeated halving with
// elementwise operators, so that the order of additions is the same on every device.
#include <fmt/format.h>
#include <fsdp/unit.h>

#include <string>
#include <vector>

#include "gpu/support/subjects.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kWidth = 256;  // a power of two, so that it can be halved
constexpr int64_t kOddWidth = 37;
constexpr int64_t kRows = 7;
constexpr int kLayers = 3;

class ScaledImpl : public torch::nn::Module {
 public:
  explicit ScaledImpl(uint64_t seed)
      : scale_(register_parameter("scale", values({kWidth}, seed))),
        shift_(register_parameter("shift", values({kWidth}, seed + 1))),
        gain_(register_parameter("gain", values({kOddWidth}, seed + 2))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::relu(x * scale_ + shift_) + x;
    const at::Tensor head = y.slice(0, 0, kOddWidth) * gain_;
    return at::cat({head, y.slice(0, kOddWidth)});
  }

 private:
  at::Tensor scale_, shift_, gain_;
};
TORCH_MODULE(Scaled);

at::Tensor sum_by_halves(at::Tensor x) {
  for (int64_t half = x.size(0) / 2; half > 0; half /= 2) {
    x = x.slice(0, 0, half) + x.slice(0, half);
  }
  return x.squeeze(0);
}

class RoundedImpl : public torch::nn::Module {
 public:
  RoundedImpl() : rows_(register_parameter("rows", values({kRows, kWidth}, 100))) {
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back(register_module(fmt::format("layer{}", i), Unit<Scaled>(10 * i)));
    }
  }

  at::Tensor forward(const at::Tensor& row) {
    at::Tensor x = at::embedding(rows_, row).squeeze(0);
    for (auto& layer : layers_) x = layer(x);
    return x;
  }

 private:
  at::Tensor rows_;
  std::vector<Unit<Scaled>> layers_;
};
TORCH_MODULE(Rounded);

class RoundedSubject final : public Subject {
 public:
  std::shared_ptr<torch::nn::Module> module() override { return model_.ptr(); }
  at::Tensor loss(int step, int rank, at::Device device) override {
    const at::Tensor row = torch::full({1}, (3 * step + rank) % kRows, torch::kLong).to(device);
    const at::Tensor target = values({kWidth}, 1000 * step + rank).to(device);
    return sum_by_halves(model_(row).to(at::kFloat) * target);
  }

 private:
  Unit<Rounded> model_;
};

}  // namespace

std::unique_ptr<Subject> make_rounded_subject() { return std::make_unique<RoundedSubject>(); }

}  // namespace fsdp::testing
