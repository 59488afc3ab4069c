// A small training that prints its loss, gradient norm and rate of every step in hexadecimal, so
// that tests can compare a resumed run with an undisturbed one to the bit.
//   fsdp-run -n N resume_rank --steps 12 --optimizer adamw --schedule cosine --save-dir D …
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kWidth = 24;
constexpr int64_t kSamples = 29;  // prime, so the last batch of an epoch is incomplete

struct BlockImpl : torch::nn::Module {
  BlockImpl() : norm(torch::nn::LayerNormOptions({kWidth})), mix(kWidth, kWidth) {
    register_module("norm", norm);
    register_module("mix", mix);
    calls = register_buffer("calls", at::zeros({}, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    calls += 1;
    return x + torch::nn::functional::dropout(
                   at::gelu(mix(norm(x))),
                   torch::nn::functional::DropoutFuncOptions().p(0.1).training(is_training()));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear mix;
  at::Tensor calls;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  // `ballast`: elements that are only saved.
  explicit NetImpl(int64_t ballast) {
    if (ballast > 0) register_parameter("ballast", at::zeros({ballast}));
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
    head = register_module("head", torch::nn::Linear(kWidth, 3));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<fsdp::Unit<Block>> blocks;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Net);

// Returns the inputs and the targets of samples.
std::pair<at::Tensor, at::Tensor> data_of(const std::vector<int64_t>& samples) {
  const at::Tensor ids =
      at::tensor(std::vector<double>(samples.begin(), samples.end()), at::kFloat);
  const at::Tensor places = at::arange(1, kWidth + 1, at::kFloat);
  return {(ids.unsqueeze(1) * places / 7).sin(), (ids.unsqueeze(1) * places.slice(0, 0, 3)).cos()};
}

// A schedule of any kind. `step` is called after each optimizer step.
struct Schedule {
  std::vector<std::unique_ptr<fsdp::LRScheduler>> schedulers;  // the last one is stepped
  std::unique_ptr<fsdp::ReduceLROnPlateau> plateau;

  void step(double loss) {
    if (plateau) plateau->step(loss);
    if (!schedulers.empty()) schedulers.back()->step();
  }
};

Schedule make_schedule(const std::string& kind, fsdp::Optimizer& optimizer, int64_t steps) {
  Schedule made;
  if (kind == "plateau") {
    made.plateau = std::make_unique<fsdp::ReduceLROnPlateau>(
        optimizer, fsdp::ReduceLROnPlateauOptions{.factor = 0.5, .patience = 1});
  } else if (kind == "one-cycle") {
    made.schedulers.push_back(std::make_unique<fsdp::OneCycleLR>(
        optimizer, fsdp::OneCycleLROptions{.max_lr = 0.02, .total_steps = steps}));
  } else if (kind == "nested") {
    made.schedulers.push_back(std::make_unique<fsdp::LinearLR>(
        optimizer, fsdp::LinearLROptions{.start_factor = 0.1, .total_iters = 4}));
    made.schedulers.push_back(std::make_unique<fsdp::CosineAnnealingLR>(
        optimizer, fsdp::CosineAnnealingLROptions{.T_max = steps}));
    made.schedulers.push_back(std::make_unique<fsdp::SequentialLR>(
        optimizer, fsdp::SequentialLROptions{
                       .schedulers = {made.schedulers[0].get(), made.schedulers[1].get()},
                       .milestones = {4}}));
  } else if (kind == "cosine") {
    made.schedulers.push_back(std::make_unique<fsdp::CosineAnnealingLR>(
        optimizer, fsdp::CosineAnnealingLROptions{.T_max = steps}));
  }
  return made;
}

struct Settings {
  std::map<std::string, std::string> given;

  std::string text(const std::string& flag, const std::string& otherwise) const {
    const auto found = given.find(flag);
    return found != given.end() ? found->second : otherwise;
  }
  int64_t number(const std::string& flag, int64_t otherwise) const {
    return std::stoll(text(flag, std::to_string(otherwise)));
  }
};

// An optimizer of fsdp, or one of LibTorch on the engine's parameters.
struct AnyOptimizer {
  AnyOptimizer(fsdp::Engine& engine, const std::string& kind) : engine(engine) {
    if (kind == "sgd") {
      ours = std::make_unique<fsdp::SGD>(engine, fsdp::SgdOptions{.lr = 0.02, .momentum = 0.9});
    } else if (kind == "torch-adamw") {
      theirs = std::make_unique<torch::optim::AdamW>(engine.parameters(),
                                                     torch::optim::AdamWOptions(0.01));
    } else {
      ours = std::make_unique<fsdp::AdamW>(
          engine, fsdp::AdamWOptions{.lr = 0.01, .groups = {{fsdp::is_bias_or_norm}}});
    }
  }
  double clip() {
    return ours ? ours->clip_grad_norm(0.5).norm() : engine.clip_grad_norm(0.5).norm();
  }
  std::optional<fsdp::StepReport> step() {
    if (ours) return ours->step();
    theirs->step();
    return std::nullopt;
  }
  void zero_grad() {
    if (ours) ours->zero_grad();
    if (theirs) theirs->zero_grad();
  }
  double lr() const { return ours ? ours->lr() : theirs->param_groups()[0].options().get_lr(); }

  fsdp::Engine& engine;
  std::unique_ptr<fsdp::Optimizer> ours;
  std::unique_ptr<torch::optim::Optimizer> theirs;
};

int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
  Settings settings;
  for (size_t i = 0; i + 1 < run.other_arguments.size(); i += 2) {
    settings.given[run.other_arguments[i]] = run.other_arguments[i + 1];
  }
  const int64_t steps = settings.number("--steps", 12);
  torch::manual_seed(static_cast<uint64_t>(7 + mesh.rank()));
  fsdp::Unit<Net> model(settings.number("--ballast", 0));
  const bool freezes = settings.number("--freezes", 0) != 0;
  const auto set_trained = [&](int64_t step) {
    const bool trained = !freezes || (step >= 2 && step < 7);
    model->blocks[1]->mix->weight.set_requires_grad(trained);
  };
  set_trained(0);
  fsdp::Engine engine(model, mesh, run.engine);
  AnyOptimizer optimizer(engine, settings.text("--optimizer", "adamw"));
  Schedule schedule;
  if (optimizer.ours) {
    schedule = make_schedule(settings.text("--schedule", "cosine"), *optimizer.ours, steps);
  }
  std::optional<fsdp::LossScaler> scaler;
  if (run.engine.mixed_precision.param_dtype == torch::kHalf) {
    scaler.emplace(engine, fsdp::LossScalerOptions{.init_scale = 1 << 20, .growth_interval = 3});
  }
  fsdp::SampleCursor cursor(fsdp::BatchSampler({.sample_count = kSamples,
                                                .world_size = mesh.world_size(),
                                                .rank = mesh.rank(),
                                                .accumulation_steps = 2,
                                                .global_batch_size = 8}));
  double best = 1e9;
  fsdp::TrainingState state(engine);
  if (optimizer.ours) state.add("optimizer", *optimizer.ours);
  if (optimizer.theirs) state.add("optimizer", *optimizer.theirs);
  for (size_t i = 0; i < schedule.schedulers.size(); ++i) {
    state.add("schedule" + std::to_string(i), *schedule.schedulers[i]);
  }
  if (schedule.plateau) state.add("plateau", *schedule.plateau);
  if (scaler) state.add("scaler", *scaler);
  state.add("data", cursor).add("best", best);
  fsdp::Checkpoints checkpoints(state, run.checkpoints);
  int64_t step = checkpoints.resume();
  const auto pause = [&] {
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(settings.number("--pause-ms", 0)));
  };
  if (mesh.rank() == 0) fmt::print("ready\n");
  pause();
  while (step < steps) {
    place.step = step + 1;
    set_trained(step);
    double loss = 0;
    std::string ids;
    for (const fsdp::MicroBatch& micro : cursor.batch(step).micro_batches) {
      const auto [inputs, targets] = data_of(micro.samples);
      const at::Tensor each = at::mse_loss(model(inputs).to(at::kFloat), targets) * micro.weight;
      (scaler ? scaler->scale(each) : each).backward();
      loss += each.item<double>();
      for (int64_t i = 0; i < micro.count; ++i) ids += fmt::format(" {}", micro.samples[i]);
    }
    const double norm = optimizer.clip();
    const std::optional<fsdp::StepReport> report = optimizer.step();
    if (scaler && report) scaler->update(*report);
    optimizer.zero_grad();
    const double mean = mesh.mean(loss, "loss");
    best = std::min(best, mean);
    schedule.step(mean);
    ++step;
    if (mesh.rank() == 0) {
      fmt::print("step {} loss {:a} norm {:a} lr {:a} scale {:a} best {:a}\n", step, mean, norm,
                 optimizer.lr(), scaler ? scaler->scale() : 1, best);
    }
    fmt::print("used {}:{}\n", step, ids);
    pause();
    if (checkpoints.after_step(step)) return 0;
    if (step == settings.number("--exit-at", -1)) std::exit(0);
    for (int64_t i = 0; i < settings.number("--evaluation-batches", 0); ++i) {
      if (mesh.rank() == 0) fmt::print("evaluation of step {}, batch {}\n", step, i);
      pause();
      if (checkpoints.poll()) return 0;
    }
  }
  const std::string file = settings.text("--weights", "");
  if (!file.empty()) fsdp::save_weights(engine, file);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_program(argc, argv, train, {.checkpoints = true, .others = true});
}
