// Measures a training step of a BERT, with and without an engine. benchmarks/peers/gpu_step.py runs
// the same step.
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/bert_task.h"
#include "benchmarks/gpu_probe/imagined_ranks.h"
#include "benchmarks/gpu_probe/probe.h"
#include "libtorch/torch_cuda.h"
#include "models/bert/bert_model.h"
#include "models/bert/presets.h"

namespace gpu_probe {
namespace {

using Model = fsdp::Unit<bert::QuestionAnswering>;

constexpr double kLearningRate = 1e-4, kWeightDecay = 0.01, kMaxNorm = 1.0;
constexpr int kImagined = 8;

// The arguments of a measurement.
struct Task {
  std::string mode, preset;
  int64_t windows, tokens;
  at::ScalarType dtype;
  bool clips;
};

// A model with its windows. Subclasses add the optimizer.
class Training {
 public:
  Training(const Task& task, const Place& place)
      : model_(config_of(task)),
        windows_(bert_task::to_device(bert_task::windows_of(task.windows, task.tokens, /*rank=*/0),
                                      place.device)) {
    bert_task::set_initial_values(*model_);
    model_->train();
  }
  virtual ~Training() = default;

  void step() {
    const at::Tensor logits = model_(windows_.ids, windows_.segments, windows_.mask).span_BS2;
    const at::Tensor sum =
        bert::span_loss_sum(logits.to(torch::kFloat), windows_.first, windows_.last);
    const at::Tensor loss = sum / static_cast<double>(windows_.ids.size(0));
    loss.backward();
    loss_ = loss.detach();  // read only on demand, because item() synchronizes the stream
    update();
  }
  double loss() const { return loss_.item<double>(); }

 protected:
  virtual void update() = 0;
  Model model_;

 private:
  static bert::Config config_of(const Task& task) {
    bert::Config config = bert::preset_config(task.preset);
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
    return config;
  }
  const bert_task::Windows windows_;
  at::Tensor loss_;
};

// A training without an engine. It uses LibTorch's fused AdamW.
class PlainTraining final : public Training {
 public:
  PlainTraining(const Task& task, const Place& place) : Training(task, place), clips_(task.clips) {
    model_->to(place.device);
    for (const at::Tensor& parameter : model_->parameters()) {
      parameters_.push_back(parameter);
      firsts_.push_back(torch::zeros_like(parameter));
      seconds_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::dtype(torch::kFloat).device(place.device)));
    }
  }

 protected:
  void update() override {
    const torch::NoGradGuard no_grad;
    if (clips_) torch::nn::utils::clip_grad_norm_(parameters_, kMaxNorm);
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, firsts_, seconds_, {}, steps_, kLearningRate, 0.9,
                      0.999, kWeightDecay, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    // As zero_grad(set_to_none=True), the default of PyTorch's optimizers.
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  const bool clips_;
  std::vector<at::Tensor> parameters_, firsts_, seconds_, steps_;
};

// A training by an engine.
class ShardedTraining final : public Training {
 public:
  ShardedTraining(const Task& task, const Place& place, const fsdp::Mesh& mesh)
      : Training(task, place),
        clips_(task.clips),
        engine_(model_, mesh, options_of(task)),
        optimizer_(engine_,
                   {.lr = kLearningRate, .weight_decay = kWeightDecay, .skip_nonfinite = false}) {}

 protected:
  void update() override {
    if (clips_) optimizer_.clip_grad_norm(kMaxNorm);
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  static fsdp::Options options_of(const Task& task) {
    return {.mixed_precision = {.param_dtype = task.dtype}, .unit_options = bert::unit_options};
  }
  const bool clips_;
  fsdp::Engine engine_;
  fsdp::AdamW optimizer_;
};

std::unique_ptr<Training> make_training(const Task& task, const Place& place) {
  if (task.mode == "plain" && task.dtype == torch::kFloat32) {
    return std::make_unique<PlainTraining>(task, place);
  }
  if (task.mode == "full-shard") {
    return std::make_unique<ShardedTraining>(task, place, place.alone);
  }
  if (task.mode == "common-path") {
    return std::make_unique<ShardedTraining>(task, place, imagined_ranks(place.alone, kImagined));
  }
  refuse(fmt::format("there is no mode '{}' with {}", task.mode, c10::toString(task.dtype)));
}

at::ScalarType dtype_of(const std::string& word) {
  if (word == "float32") return torch::kFloat32;
  if (word == "bfloat16") return torch::kBFloat16;
  refuse(fmt::format("there is no type '{}'", word));
}

}  // namespace

void serve_step(const Place& place, const Words& words) {
  const Task task{.mode = words[0],
                  .preset = words[1],
                  .windows = std::stoll(words[2]),
                  .tokens = std::stoll(words[3]),
                  .dtype = dtype_of(words[4]),
                  .clips = words[5] == "1"};
  const auto training = make_training(task, place);
  serve({{"run",
          [&](std::istream& arguments) {
            int64_t steps = 0;
            if (!(arguments >> steps) || steps < 1) refuse("the number of steps is missing");
            training->step();  // allocates again, because the cache was emptied
            const double seconds = seconds_of(place, steps, [&] { training->step(); });
            fsdp::torch_cuda::empty_cache();  // for the next contestant, which is another process
            return seconds * 1e3 / static_cast<double>(steps);
          }},
         {"loss", [&](std::istream&) { return training->loss(); }}});
}

}  // namespace gpu_probe
