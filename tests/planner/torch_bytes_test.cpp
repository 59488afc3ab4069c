#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include "libtorch/torch_memory.h"
#include "models/bert/bert_model.h"
#include "models/bert/presets.h"
#include "models/gpt.h"
#include "planner/support/vision_models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the bytes of LibTorch in the third step on the CPU.
template <class Build, class Step>
TorchMemoryPlan measured(int world, const Options& options, const Build& build, const Step& step) {
  TorchMemoryPlan result;
  run_torch_ranks(world, [&](Mesh mesh) {
    const auto meter = std::make_shared<MemoryMeter>();
    const torch_memory::MeterScope metered(meter);
    auto model = build_seeded(7, build);
    Engine engine(model, mesh, options);
    AdamW optimizer(engine, {});
    TorchMemoryPlan bytes;
    for (int i = 0; i < 3; ++i) {
      bytes.rest = meter->reading().now.torch;
      meter->reset_peak();
      at::Tensor loss = step(model);
      bytes.forward_peak = meter->reading().peaks.torch;
      bytes.after_forward = meter->reading().now.torch;
      meter->reset_peak();
      loss.backward();
      bytes.backward_peak = meter->reading().peaks.torch;
      loss = at::Tensor();
      optimizer.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    if (mesh.rank() == 0) result = bytes;
  });
  return result;
}

struct Compared {
  std::string name;
  double tolerance = 0.001;  // a fraction, because only the CPU copies small arguments
  std::vector<int> recompute{0, 1};
};

// Compares every phase, on one rank and on two.
template <class Build, class Step>
void compare(const Compared& what, const Build& build, const Step& step) {
  for (const int world : {1, 2}) {
    for (const int recompute : what.recompute) {
      const Options options{.recompute = recompute};
      const TorchMemoryPlan run = measured(world, options, build, step);
      const TorchMemoryPlan planned = plan({.ranks = world, .options = options}, build, step).torch;
      const auto check = [&](const std::string& phase, int64_t of_plan, int64_t of_run) {
        INFO(what.name << ", " << world << " ranks, recompute " << recompute << ", " << phase);
        CAPTURE(of_plan);
        CAPTURE(of_run);
        CHECK(std::abs(of_plan - of_run) <= what.tolerance * static_cast<double>(of_run));
      };
      check("rest", planned.rest, run.rest);
      check("forward peak", planned.forward_peak, run.forward_peak);
      check("after forward", planned.after_forward, run.after_forward);
      check("backward peak", planned.backward_peak, run.backward_peak);
    }
  }
}

at::Tensor images(std::vector<int64_t> shape) { return torch::zeros(shape); }
at::Tensor labels(std::vector<int64_t> shape) { return torch::zeros(shape, torch::kLong); }

// The plan of oneDNN's convolutions is exact only for one version of oneDNN.
constexpr double kOfOneDnn = 0.05;

}  // namespace

TEST_CASE("LibTorch's bytes of a BERT's step are planned within a thousandth, with dropout, too") {
  for (const double dropout : {0.1, 0.0}) {
    bert::Config config = bert::preset_config("tiny");
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout;
    // Thread ranks share one generator, so a recomputed forward may draw other numbers.
    const std::vector<int> recompute = dropout > 0 ? std::vector{0} : std::vector{0, 1};
    compare(
        {.name = "BERT", .recompute = recompute},
        [&] { return Unit<bert::QuestionAnswering>(config); },
        [](auto& model) {
          const at::Tensor mask = torch::ones({4, 64}, torch::kLong);
          return bert::span_loss_sum(model(labels({4, 64}), labels({4, 64}), mask).span_BS2,
                                     labels({4}), labels({4}));
        });
  }
}

TEST_CASE("LibTorch's bytes of a GPT's step are planned within a thousandth") {
  compare(
      {.name = "GPT"}, [] { return Unit<gpt::Gpt>(gpt::preset_config("tiny")); },
      [](auto& model) {
        return at::cross_entropy_loss(model(labels({4, 64})).flatten(0, 1), labels({256}));
      });
}

TEST_CASE("LibTorch's bytes of a ResNet's step are planned within five per cent") {
  compare(
      {.name = "ResNet", .tolerance = kOfOneDnn}, [] { return Unit<ResNet>(); },
      [](auto& model) {
        return at::cross_entropy_loss(model(images({4, 3, 64, 64})), labels({4}));
      });
}

TEST_CASE("LibTorch's bytes of a U-Net's step are planned within five per cent") {
  compare(
      {.name = "U-Net", .tolerance = kOfOneDnn}, [] { return Unit<UNet>(); },
      [](auto& model) {
        return at::cross_entropy_loss(model(images({2, 1, 64, 64})), labels({2, 64, 64}));
      });
}
