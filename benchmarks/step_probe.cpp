// Times training steps of a BERT on the same windows, for benchmarks/step and benchmarks/hosts.
//   fsdp-run -n 2 step_probe MODE PRESET WINDOWS TOKENS STEPS [TRACE]
// MODE is one of these. full-shard. gathered: full-shard without mapped shards. recompute and
// offload: gathered plus that option. replicate: DDP. zero1 and zero2. hybrid: sharded in a host,
// replicated over hosts. plain: the same modules without an engine, with LibTorch's fused AdamW,
// independent on each rank; it shows the cost of a step without communication. Rank 0 prints one
// JSON object.
#include <ATen/ops/_fused_adamw.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "benchmarks/bert_task.h"
#include "benchmarks/engine_mode.h"
#include "models/bert/bert_model.h"
#include "models/bert/presets.h"

namespace {

using fsdp::Unit;
using Model = Unit<bert::QuestionAnswering>;

// The parsed command line.
struct Task {
  std::string mode, preset;
  int64_t windows, tokens, steps;
  std::string trace;  // file for the last steps; empty: no trace
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double forward_backward(Model& model, const bert_task::Windows& windows) {
  const at::Tensor logits = model(windows.ids, windows.segments, windows.mask).span_BS2;
  const at::Tensor loss = bert::span_loss_sum(logits, windows.first, windows.last) /
                          static_cast<double>(windows.ids.size(0));
  loss.backward();
  return loss.item<double>();
}

constexpr double kLearningRate = 1e-4, kWeightDecay = 0.01;

// LibTorch's fused AdamW, called in the same way as by Python's torch.optim.AdamW(fused=True).
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

// The measurements of a rank.
struct Measured {
  std::vector<double> losses, step_ms;
  std::vector<double> compute_ms;  // parts of step_ms: forward and backward
  int64_t exposed_ns = 0;
  int64_t first_bytes = 0;  // of the plain model: see bytes_of_first
};

template <class Update>
void train(const Task& task, const fsdp::Mesh& mesh, Model& model, Update update,
           Measured& measured) {
  const auto windows = bert_task::windows_of(task.windows, task.tokens, mesh.rank());
  model->train();
  for (int64_t step = 0; step < task.steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    measured.losses.push_back(forward_backward(model, windows));
    measured.compute_ms.push_back(milliseconds_since(began));
    update();
    measured.step_ms.push_back(milliseconds_since(began));
  }
}

// Returns the bytes of the embeddings and of the first layer. Before the first layer computes in
// forward, they have all been gathered. After it has computed in backward, they are all reduced.
int64_t bytes_of_first(const torch::nn::Module& model) {
  int64_t bytes = 0;
  for (const auto& named : model.named_parameters()) {
    const bool is_first = named.key().find("embeddings.") != std::string::npos ||
                          named.key().find("encoder.layer.0.") != std::string::npos;
    if (is_first) bytes += named.value().nbytes();
  }
  return bytes;
}

Measured measure(const Task& task, const fsdp::Mesh& mesh) {
  Measured measured;
  bert::Config config = bert::preset_config(task.preset);
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  if (task.mode == "plain") {
    Model model(config);
    bert_task::set_initial_values(*model);
    measured.first_bytes = bytes_of_first(*model);
    FusedAdamW optimizer(model->parameters());
    train(
        task, mesh, model, [&] { optimizer.step(); }, measured);
    return measured;
  }
  fsdp::Options options = options_of_mode(task.mode);
  options.unit_options = bert::unit_options;
  fsdp::BuildScope building(mesh, options);
  Model model(config);
  fsdp::Engine engine(model, building);
  {
    // All ranks compute the same whole values, so each rank writes back only its own slice.
    const fsdp::Gathered whole(engine, fsdp::WriteBack::kOwnSlice);
    bert_task::set_initial_values(*model);
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
  // By rank, because without communication each rank has its own speed.
  const std::vector<double> compute_ms =
      mesh.gather(std::span<const double>(measured.compute_ms), "times");
  if (mesh.rank() == 0) {
    fmt::print(
        "{{\"losses\": [{}], \"step_ms\": [{}], \"compute_ms\": [{}], "
        "\"exposed_ms\": {:.3f}, \"first_bytes\": {}}}\n",
        fmt::join(measured.losses, ", "), fmt::join(measured.step_ms, ", "),
        fmt::join(compute_ms, ", "),
        static_cast<double>(measured.exposed_ns) / 1e6 / static_cast<double>(task.steps),
        measured.first_bytes);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_program([&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    std::vector<std::string> modes = engine_modes();
    modes.emplace_back("plain");
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
