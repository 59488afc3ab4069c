// One training step of a BERT, again and again on the same windows: what benchmarks/step times.
//   fsdp-run -n 2 step_probe MODE PRESET WINDOWS TOKENS STEPS [TRACE]
// MODE is full-shard, gathered (the same without mapped shards), recompute and offload (full-shard,
// gathered, with either), replicate (DDP), zero1, zero2, or plain: the same modules without an
// engine and LibTorch's fused AdamW, each rank for itself, which is what a step
// costs where nothing is communicated. Initial values and windows follow from formulas that
// benchmarks/peers/step.py shares, so losses are comparable. Rank 0 prints one JSON object.
#include <ATen/ops/_fused_adamw.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "models/bert/bert_model.h"
#include "models/bert/presets.h"

namespace {

using fsdp::Unit;
using Model = Unit<bert::QuestionAnswering>;

struct Task {
  std::string mode, preset;
  int64_t windows, tokens, steps;
  std::string trace;  // of the last steps; empty: none
};

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

// Uniform with the standard deviation that BERT starts from; biases 0, normalisation weights 1.
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
    torch::autograd::impl::bump_version(tensor);
  }
}

struct Windows {
  at::Tensor ids, segments, mask, first, last;
};

Windows windows_of(const Task& task, int rank) {
  Windows made{.ids = torch::empty({task.windows, task.tokens}, torch::kLong)};
  auto* ids = made.ids.data_ptr<int64_t>();
  const auto base = static_cast<uint32_t>(rank * task.windows * task.tokens);
  for (int64_t i = 0; i < made.ids.numel(); ++i) {
    ids[i] = 1000 + scramble(base + static_cast<uint32_t>(i)) % 28000;
  }
  made.segments = torch::zeros_like(made.ids);
  made.mask = torch::ones_like(made.ids);
  made.first = made.ids.select(1, 0) % (task.tokens / 2);
  made.last = made.first + made.ids.select(1, 1) % (task.tokens / 2);
  return made;
}

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double forward_backward(Model& model, const Windows& windows) {
  const at::Tensor logits = model(windows.ids, windows.segments, windows.mask);
  const at::Tensor loss = bert::span_loss_sum(logits, windows.first, windows.last) /
                          static_cast<double>(windows.ids.size(0));
  loss.backward();
  return loss.item<double>();
}

constexpr double kLearningRate = 1e-4, kWeightDecay = 0.01;

// LibTorch's fused AdamW, as Python's torch.optim.AdamW(fused=True) calls it.
class FusedAdamW {
 public:
  explicit FusedAdamW(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
    for (const at::Tensor& parameter : parameters) {
      exp_avgs_.push_back(torch::zeros_like(parameter));
      exp_avg_sqs_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::kFloat));
    }
  }

  void step() {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    for (at::Tensor& step : steps_) step += 1;
    at::_fused_adamw_(parameters_, gradients, exp_avgs_, exp_avg_sqs_, {}, steps_, kLearningRate,
                      0.9, 0.999, kWeightDecay, 1e-8, false, false);
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  std::vector<at::Tensor> parameters_, exp_avgs_, exp_avg_sqs_, steps_;
};

struct Measured {
  std::vector<double> losses, step_ms;
  int64_t exposed_ns = 0;
};

template <class Update>
void train(const Task& task, const fsdp::Mesh& mesh, Model& model, Update update,
           Measured& measured) {
  const Windows windows = windows_of(task, mesh.rank());
  model->train();
  for (int64_t step = 0; step < task.steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    measured.losses.push_back(forward_backward(model, windows));
    update();
    measured.step_ms.push_back(milliseconds_since(began));
  }
}

Measured measure(const Task& task, const fsdp::Mesh& mesh) {
  Measured measured;
  bert::Config config = bert::preset_config(task.preset);
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  if (task.mode == "plain") {
    Model model(config);
    set_initial_values(*model);
    FusedAdamW optimizer(model->parameters());
    train(
        task, mesh, model, [&] { optimizer.step(); }, measured);
    return measured;
  }
  fsdp::Options options{.unit_options = bert::unit_options};
  options.map_shards = task.mode == "full-shard";
  options.recompute = task.mode == "recompute" ? 1 : 0;
  options.cpu_offload = task.mode == "offload";
  if (task.mode == "replicate") options.strategy = fsdp::Strategy::kReplicate;
  if (task.mode == "zero1") options.strategy = fsdp::Strategy::kZero1;
  if (task.mode == "zero2") options.strategy = fsdp::Strategy::kZero2;
  fsdp::BuildScope building(mesh, options);
  Model model(config);
  fsdp::Engine engine(model, building);
  {
    const fsdp::Gathered whole(engine, fsdp::WriteBack::kOwnSlice);
    set_initial_values(*model);
  }
  fsdp::AdamW optimizer(
      engine, {.lr = kLearningRate, .weight_decay = kWeightDecay, .skip_nonfinite = false});
  const auto update = [&] {
    optimizer.step();
    optimizer.zero_grad();
  };
  train(task, mesh, model, update, measured);
  if (!task.trace.empty()) {
    const fsdp::Trace trace(engine);
    train(task, mesh, model, update, measured);
    trace.write(task.trace);
  }
  measured.exposed_ns = engine.stats().exposed_comm_ns;
  return measured;
}

int probe(const fsdp::Mesh& mesh, const Task& task) {
  at::set_num_threads(1);
  const Measured measured = measure(task, mesh);
  if (mesh.rank() == 0) {
    fmt::print("{{\"losses\": [{}], \"step_ms\": [{}], \"exposed_ms\": {:.3f}}}\n",
               fmt::join(measured.losses, ", "), fmt::join(measured.step_ms, ", "),
               static_cast<double>(measured.exposed_ns) / 1e6 / static_cast<double>(task.steps));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_program([&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const std::vector<std::string> modes = {"full-shard", "gathered", "recompute", "offload",
                                            "replicate",  "zero1",    "zero2",     "plain"};
    const bool known = (words.size() == 5 || words.size() == 6) &&
                       std::find(modes.begin(), modes.end(), words[0]) != modes.end();
    if (!known) {
      throw fsdp::InvalidArgument(
          {.what = fmt::format("usage: step_probe {} PRESET WINDOWS TOKENS STEPS [TRACE]",
                               fmt::join(modes, "|"))},
          fsdp::ExitCode::kUsage);
    }
    return probe(mesh, {.mode = words[0],
                        .preset = words[1],
                        .windows = std::stoll(words[2]),
                        .tokens = std::stoll(words[3]),
                        .steps = std::stoll(words[4]),
                        .trace = words.size() > 5 ? words[5] : std::string()});
  });
}
