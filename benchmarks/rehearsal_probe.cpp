// Compares the planned time of a training step with its measured time, for benchmarks/rehearsal.
//   fsdp-run -n 2 rehearsal_probe MODEL BATCH LENGTH [FIELD=VALUE …]     ranks are processes
//   rehearsal_probe MODEL BATCH LENGTH ranks=2 wire=1.5 [FIELD=VALUE …]  ranks are threads
// MODEL is a preset of fsdp-plan, resnet or vit. LENGTH is in tokens or in pixels of a side.
//   mode=full-shard|gathered|recompute|offload|replicate|zero1|zero2
//   streams=inline|threaded     the threads of collectives
//   ranks=N wire=GB/S           thread ranks; the rate of their links, 0: no limit
//   seconds=S                   time for rounds (5)
//   rates=FILE                  writes the rates there
//   clock=wall|thread           thread: the time in which a thread runs, for one rank
// In each round all ranks run each operator of the step by itself, and then steps. Rank 0 prints
// one JSON object.
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/fsdp.h>
#include <fsdp/measured_rates.h>
#include <fsdp/program.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/engine_mode.h"
#include "planner/time/device_timer.h"
#include "planning/known_model.h"
#include "tests/planner/support/vision_models.h"
#include "tests/support/run_ranks.h"
#include "tests/support/wire/wire_ranks.h"

namespace {

using fsdp::Mesh;
using planning::BlankModel;

struct Task {
  std::string model;
  int64_t batch = 1, length = 0;
  std::string mode = "full-shard";
  bool threaded = false;
  int thread_ranks = 0;  // 0: ranks are processes
  double wire = 0;
  double seconds = 5;
  fsdp::CpuClock clock = fsdp::CpuClock::kWall;
  std::string rates_file;
};

constexpr int64_t kClasses = 10;

// A layer of a vision transformer. Suffixes: B images, N patches, W width, H heads, D head size.
struct VisionLayerImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 192, kHeads = 6;
  VisionLayerImpl()
      : attention_norm(register_module("attention_norm", norm())),
        mlp_norm(register_module("mlp_norm", norm())),
        query_key_value(linear("query_key_value", kWidth, 3 * kWidth)),
        out(linear("out", kWidth, kWidth)),
        up(linear("up", kWidth, 4 * kWidth)),
        down(linear("down", 4 * kWidth, kWidth)) {}
  at::Tensor forward(const at::Tensor& x_BNW) {
    const auto parts = query_key_value(attention_norm(x_BNW))
                           .unflatten(2, {3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();  // B,H,N,D
    const at::Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2).flatten(2);
    const at::Tensor y_BNW = x_BNW + out(attended);
    return y_BNW + down(at::gelu(up(mlp_norm(y_BNW))));
  }
  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }
  torch::nn::Linear linear(const char* name, int64_t in, int64_t out_features) {
    return register_module(name, torch::nn::Linear(in, out_features));
  }
  torch::nn::LayerNorm attention_norm, mlp_norm;
  torch::nn::Linear query_key_value, out, up, down;
};
TORCH_MODULE(VisionLayer);

// A vision transformer on patches of 8 × 8 pixels.
struct ViTImpl : torch::nn::Module {
  static constexpr int64_t kDepth = 6, kPatch = 8;
  explicit ViTImpl(int64_t side)
      : patches(register_module(
            "patches",
            torch::nn::Conv2d(
                torch::nn::Conv2dOptions(3, VisionLayerImpl::kWidth, kPatch).stride(kPatch)))),
        places(register_parameter("places", 0.02 * torch::randn({side * side / kPatch / kPatch,
                                                                 VisionLayerImpl::kWidth}))),
        head(register_module("head", torch::nn::Linear(VisionLayerImpl::kWidth, kClasses))) {
    for (int64_t i = 0; i < kDepth; ++i) {
      layers.emplace_back();
      register_module("layers" + std::to_string(i), layers.back());
    }
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = patches(images).flatten(2).transpose(1, 2) + places;
    for (auto& layer : layers) x = layer(x);
    return head(x.mean(1));
  }
  torch::nn::Conv2d patches;
  at::Tensor places;
  std::vector<fsdp::Unit<VisionLayer>> layers;
  torch::nn::Linear head;
};
TORCH_MODULE(ViT);

template <class Model>
BlankModel classifier(Model model, const Task& task) {
  const at::Tensor images = torch::randn({task.batch, 3, task.length, task.length});
  const at::Tensor labels = torch::zeros({task.batch}, torch::kLong);
  return {model.ptr(), [=]() mutable { return at::cross_entropy_loss(model(images), labels); }};
}

BlankModel built(const Task& task) {
  if (task.model == "resnet") {
    return classifier(fsdp::Unit<fsdp::testing::ResNet>(/*width=*/32), task);
  }
  if (task.model == "vit") return classifier(fsdp::Unit<ViT>(task.length), task);
  return planning::find_model(task.model).build({.sequences = task.batch, .length = task.length});
}

fsdp::Options options_of(const Task& task) {
  fsdp::Options options = options_of_mode(task.mode);
  if (task.model != "vit" && task.model != "resnet") {
    options.unit_options = planning::find_model(task.model).unit_options;
  }
  options.tuning.cpu_streams =
      task.threaded ? fsdp::CpuStreamKind::kThreaded : fsdp::CpuStreamKind::kInline;
  return options;
}

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Trains the model and measures steps.
class Training {
 public:
  Training(const Task& task, const Mesh& mesh)
      : mesh_(mesh),
        clock_(task.clock),
        model_(built(task)),
        engine_(model_.root, mesh, options_of(task)),
        optimizer_(engine_, {.lr = 1e-5}) {
    model_.root->train();
    for (int i = 0; i < 3; ++i) step();
    one_ms_ = mesh_.max(step());
  }

  // Runs steps for about `ms` milliseconds, at least one.
  void steps(double ms) {
    mesh_.max(0, "the steps of a round");
    for (int i = 0; i == 0 || i < ms / one_ms_; ++i) times_.push_back(step());
  }
  // Returns the time of the optimizer in the last step.
  double update_ms() const { return update_ms_; }
  std::vector<double> sorted_ms() const {
    std::vector<double> sorted = times_;
    std::ranges::sort(sorted);
    return sorted;
  }

 private:
  double step() {
    const double begin = fsdp::now_ns(clock_);
    engine_.forward(model_.loss).backward();
    const double middle = fsdp::now_ns(clock_);
    optimizer_.clip_grad_norm(1.0);
    optimizer_.step();
    optimizer_.zero_grad();
    const double end = fsdp::now_ns(clock_);
    update_ms_ = 1e-6 * (end - middle);
    return 1e-6 * (end - begin);
  }

  const Mesh mesh_;
  const fsdp::CpuClock clock_;
  BlankModel model_;
  fsdp::Engine engine_;
  fsdp::AdamW optimizer_;
  double one_ms_ = 0, update_ms_ = 0;
  std::vector<double> times_;
};

fsdp::PlanRequest request_of(const Task& task, const Mesh& mesh) {
  const fsdp::Options options = options_of(task);
  return {
      .ranks = mesh.world_size(),
      .maps_shards = mesh.world_size() > 1 && task.thread_ranks == 0 && options.tuning.map_shards,
      .options = options};
}

std::string to_json(const fsdp::StepTime& time) {
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  return fmt::format(
      "{{\"products\": {:.4f}, \"attention\": {:.4f}, \"operators\": {:.4f}, \"kernels\": {:.4f}, "
      "\"optimizer\": {:.4f}, \"gather\": {:.4f}, \"reduce\": {:.4f}, \"transfer\": {:.4f}, "
      "\"host\": {:.4f}}}",
      ms(time.products_ns), ms(time.attention_ns), ms(time.operators_ns), ms(time.kernels_ns),
      ms(time.optimizer_ns), ms(time.exposed_gather_ns), ms(time.exposed_reduce_ns),
      ms(time.exposed_transfer_ns), ms(time.host_ns));
}

int probe(const Task& task, const Mesh& mesh) {
  const auto begin = std::chrono::steady_clock::now();
  fsdp::PlanRequest request = request_of(task, mesh);
  fsdp::Planner planner([&] { return built(task); },
                        [](BlankModel& model) { return model.loss(); });
  fsdp::PlayedOperators operators = planner.operators(request);
  const fsdp::HostTimes host = fsdp::measured_host_times(task.clock);
  const fsdp::MeasureOptions measure{
      .seconds = 1, .link_bytes = task.wire > 0 ? 4 << 20 : 32 << 20, .clock = task.clock};
  fsdp::Rates rates{.machine = mesh.host(), .source = "measured in turns with the steps"};
  Training training(task, mesh);
  fsdp::measure_device(rates, mesh, measure);
  fsdp::measure_links(rates, mesh, measure);
  fsdp::measure_kernels(rates, mesh, measure);
  const double prepared_ms = milliseconds_since(begin);
  const auto rounds_begin = std::chrono::steady_clock::now();
  // At least the warm-up and three rounds.
  for (int round = 0; round < 4 || mesh.max(milliseconds_since(rounds_begin)) < 1e3 * task.seconds;
       ++round) {
    mesh.max(0, "the operators of a round");
    const auto play_begin = std::chrono::steady_clock::now();
    operators.play(at::kCPU, task.clock);
    training.steps(mesh.max(milliseconds_since(play_begin)));
  }
  if (mesh.rank() != 0) return 0;
  rates.operators = operators.prices(host.between_ns);
  rates.host_ns_per_call = host.per_call_ns;
  rates.host_ns_per_kernel = host.per_kernel_ns;
  request.rates = rates;
  const fsdp::StepTime time = planner.plan(request).time.value();
  request.rates->operators.clear();
  const fsdp::StepTime roofline = planner.plan(request).time.value();
  const std::vector<double> sorted = training.sorted_ms();
  const auto at = [&](double part) {
    return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
  };
  fmt::print(
      "{{\"predicted\": {:.4f}, \"measured\": {:.4f}, \"p10\": {:.4f}, \"p90\": {:.4f}, "
      "\"roofline\": {:.4f}, \"steps\": {}, \"operators\": {}, \"failures\": {}, "
      "\"update\": {:.3f}, \"interruptions\": {:.4f}, \"between_us\": {:.3f}, "
      "\"kernel_us\": {:.3f}, \"prepared_s\": {:.2f}, \"parts\": {}, \"basis\": \"{}\"}}\n",
      static_cast<double>(time.total_ns) * 1e-6, at(0.5), at(0.1), at(0.9),
      static_cast<double>(roofline.total_ns) * 1e-6, sorted.size(), operators.count(),
      operators.failures().size(), training.update_ms(), operators.interruptions(),
      host.between_ns * 1e-3, host.per_kernel_ns * 1e-3, prepared_ms * 1e-3, to_json(time),
      time.basis);
  if (!task.rates_file.empty()) {
    request.rates->operators = std::move(rates.operators);
    std::ofstream(task.rates_file) << fsdp::to_json(*request.rates);
  }
  return 0;
}

[[noreturn]] void refuse(const std::string& what) {
  throw fsdp::InvalidArgument(
      {.what = what,
       .where = "command line",
       .hint = "use rehearsal_probe MODEL BATCH LENGTH [mode=M] [streams=threaded] [ranks=N] "
               "[wire=R] [seconds=S]"},
      fsdp::ExitCode::kUsage);
}

Task parse(const std::vector<std::string>& words) {
  if (words.size() < 3) refuse("words are missing");
  Task task{.model = words[0], .batch = std::stoll(words[1]), .length = std::stoll(words[2])};
  const std::vector<std::string> modes = {"full-shard", "gathered", "recompute", "offload",
                                          "replicate",  "zero1",    "zero2"};
  for (size_t i = 3; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    const std::string value = words[i].substr(std::min(name.size() + 1, words[i].size()));
    if (name == "mode" && std::ranges::find(modes, value) != modes.end()) {
      task.mode = value;
    } else if (name == "streams" && (value == "inline" || value == "threaded")) {
      task.threaded = value == "threaded";
    } else if (name == "ranks") {
      task.thread_ranks = std::stoi(value);
    } else if (name == "wire") {
      task.wire = std::stod(value);
    } else if (name == "clock" && (value == "wall" || value == "thread")) {
      task.clock = value == "wall" ? fsdp::CpuClock::kWall : fsdp::CpuClock::kThread;
    } else if (name == "rates") {
      task.rates_file = value;
    } else if (name == "seconds") {
      task.seconds = std::stod(value);
    } else {
      refuse(fmt::format("'{}' is unknown", words[i]));
    }
  }
  return task;
}

// LibTorch's settings of a thread that is a rank: one thread, and backward in the rank's thread.
void prepare_thread() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  at::set_num_threads(1);
}

int run_threads(const Task& task) {
  try {
    fsdp::testing::run_ranks(
        task.thread_ranks, [&](const Mesh& mesh) { probe(task, mesh); },
        {.in_each_thread = prepare_thread,
         .make = fsdp::testing::ranks_on_wire({.gigabytes_per_second = task.wire})});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Task task;
  try {
    task = parse({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return 64;
  }
  if (task.thread_ranks > 0) return run_threads(task);
  return fsdp::run_program([&](const Mesh& mesh, fsdp::ErrorPlace&) {
    at::set_num_threads(1);
    return probe(task, mesh);
  });
}
