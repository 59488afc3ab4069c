// Trains a small vision transformer to read digits, and keeps the best one: fsdp-run -n 2 vision
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <array>
#include <filesystem>
#include <optional>

#include "named_optimizer.h"
#include "own_flags.h"
#include "terminal/status_line.h"
#include "training/step_record.h"
#include "training/train_summary.h"
#include "vision/digits.h"

namespace nn = torch::nn;

constexpr int64_t kHeldOut = 297;   // digits at the end of the file, for evaluation
constexpr int64_t kWidth = 64;      // features of a patch
constexpr double kSmoothing = 0.1;  // of labels
constexpr std::array<std::string_view, 2> kMetrics{"accuracy", "loss"};  // of an evaluation

// Tensors: B images, N patches, D features.
struct ViTImpl : nn::Module {
  ViTImpl(int64_t depth, double dropout)
      : stem(register_module(
            "stem", nn::Sequential(conv(1, 32, /*stride=*/1), nn::GELU(), conv(32, kWidth, 2)))),
        places(register_parameter("places", torch::randn({16, 1, kWidth}))),
        layers(register_module("layers", nn::Sequential())),
        head(register_module("head", nn::Linear(16 * kWidth, 10))) {
    nn::TransformerEncoderLayerOptions layer(kWidth, /*nhead=*/4);
    layer.dim_feedforward(2 * kWidth).dropout(dropout);
    for (int64_t i = 0; i < depth; ++i) layers->push_back(nn::TransformerEncoderLayer(layer));
  }
  at::Tensor forward(at::Tensor images) {
    const at::Tensor x_BDN = stem->forward(images.unsqueeze(1) * 2 - 1).flatten(2);
    const at::Tensor x_NBD = layers->forward(x_BDN.permute({2, 0, 1}) + places);
    return head(x_NBD.transpose(0, 1).flatten(1));
  }
  static nn::Conv2d conv(int64_t in, int64_t out, int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1));
  }
  nn::Sequential stem;
  at::Tensor places;
  nn::Sequential layers;
  nn::Linear head;
};
TORCH_MODULE(ViT);

struct Settings {
  std::string data = VISION_DIGITS, output_dir, help, optim = "adamw_torch";
  int64_t epochs = 20, batch_size = 32, accumulation_steps = 1, depth = 2;
  double learning_rate = 2e-3, dropout = 0.1;
  fsdp::Options engine;
  fsdp::CheckpointOptions checkpoints;
  fsdp::ScheduleOptions schedule;
  fsdp::EvaluationOptions evaluation;
  std::filesystem::path event_folder;
};

Settings read_command_line(const fsdp::RunOptions& run) {
  Settings settings{.engine = run.engine,
                    .checkpoints = run.checkpoints,
                    .schedule = run.schedule,
                    .evaluation = run.evaluation};
  OwnFlags flags(run);
  flags.read("--data", settings.data, "a file of digits (examples/vision/data/README.md)");
  flags.read("--num-train-epochs", settings.epochs, "a whole number, 1 or more", 1);
  flags.read("--batch-size", settings.batch_size, "the images of a step, over all ranks", 1);
  flags.read("--gradient-accumulation-steps", settings.accumulation_steps,
             "the number of parts of a batch, 1 or more", 1);
  flags.read("--num-layers", settings.depth, "a whole number, 1 or more", 1);
  flags.read("--learning-rate", settings.learning_rate, "a number, reached after the warm-up");
  flags.read("--optim", settings.optim, "one of " + optimizer_names());
  prepare_engine(settings.optim, settings.engine);  // refuses other names
  flags.read("--dropout", settings.dropout, "a number from 0 to 1", 0, 1);
  flags.read("--seed", settings.engine.seed, "a whole number, for weights, order and dropout");
  flags.read("--output-dir", settings.output_dir, "the folder of model.safetensors");
  settings.checkpoints.set_default_folder(settings.output_dir);
  settings.help = flags.finish({.checkpoints = true, .trains = true, .evaluates = true});
  settings.evaluation.resolve(kMetrics);
  settings.schedule.require_valid(settings.learning_rate);
  settings.event_folder = run.reports.event_folder(settings.output_dir);
  std::error_code ignored;  // an error of the folder is reported when it is used
  if (!settings.output_dir.empty() && settings.help.empty())
    std::filesystem::create_directories(settings.output_dir, ignored);
  settings.engine.units = fsdp::by_type<nn::TransformerEncoderLayer>();
  return settings;
}

// Moves each image by at most one pixel in both directions.
at::Tensor moved(const at::Tensor& images) {
  const int64_t count = images.size(0);
  const at::Tensor crops = at::pad(images, {1, 1, 1, 1}).unfold(1, 8, 1).unfold(2, 8, 1);
  const at::Tensor dx = torch::randint(3, {count}, images.options().dtype(torch::kLong));
  const at::Tensor dy = at::randint_like(dx, 3);
  return crops.index({at::arange(count, dx.options()), dx, dy});
}

struct Evaluated {
  double accuracy = 0;  // part of the digits that the model names right
  double loss = 0;
  double metric(std::string_view name) const { return name == "loss" ? loss : accuracy; }
};

// Returns nothing if a signal ends the run.
std::optional<Evaluated> evaluate(fsdp::Engine& engine, ViT& model, const Digits& digits,
                                  fsdp::Checkpoints& checkpoints) {
  const fsdp::Mesh& mesh = engine.mesh();
  const fsdp::BatchSampler sampler({.sample_count = digits.count(),
                                    .world_size = mesh.world_size(),
                                    .rank = mesh.rank(),
                                    .batch_size_per_rank = 64,
                                    .shuffle = false});
  const torch::NoGradGuard no_grad;
  model->eval();
  std::array<double, 2> sums{};  // right answers, losses
  for (int64_t i = 0; i < sampler.batches_per_epoch(); ++i) {
    if (checkpoints.poll()) return std::nullopt;
    const fsdp::MicroBatch mine = sampler.batch(/*epoch=*/0, i).micro_batches.front();
    const auto [images, labels] = digits.picked(mine.samples);
    const at::Tensor logits = engine.forward(model, images).to(torch::kFloat32);
    const auto mine_of = [&](const at::Tensor& values) {  // without a filler sample
      return values.slice(0, 0, mine.count).sum().item<double>();
    };
    sums[0] += mine_of(logits.argmax(1) == labels);
    sums[1] += mine_of(at::cross_entropy_loss(logits, labels, {}, at::Reduction::None));
  }
  model->train();
  const auto [right, loss] = mesh.sum(sums, "evaluation");
  return Evaluated{right / digits.count(), loss / digits.count()};
}

void train(fsdp::Engine& engine, ViT& model, const Digits& digits, const Settings& settings,
           fsdp::ErrorPlace& place) {
  const fsdp::Mesh& mesh = engine.mesh();
  const Digits seen = digits.slice(0, digits.count() - kHeldOut);
  const Digits held_out = digits.slice(seen.count(), digits.count());
  fsdp::SampleCursor cursor(fsdp::BatchSampler({.sample_count = seen.count(),
                                                .world_size = mesh.world_size(),
                                                .rank = mesh.rank(),
                                                .accumulation_steps = settings.accumulation_steps,
                                                .global_batch_size = settings.batch_size,
                                                .seed = settings.engine.seed}));
  const auto made =
      make_optimizer(engine, settings.optim, {.lr = settings.learning_rate, .weight_decay = 0.05});
  fsdp::Optimizer& optimizer = *made;
  const int64_t steps = settings.epochs * cursor.sampler().batches_per_epoch();
  fsdp::LambdaLR schedule(optimizer, settings.schedule.make(steps, settings.learning_rate));
  const fsdp::EvaluationOptions& evaluation = settings.evaluation;
  const std::filesystem::path output = settings.output_dir;
  const bool keeps_best = evaluation.load_best_model_at_end.value_or(true) && !output.empty();
  fsdp::BestModel best({.evaluation = evaluation,
                        .folder = keeps_best ? output / "best" : "",
                        .checkpoints = settings.checkpoints.folder});
  double loss_sum = 0;  // over the images of this epoch
  training::TrainSummary summary;
  fsdp::TrainingState state(engine);
  state.add("optimizer", optimizer).add("schedule", schedule).add("data", cursor);
  state.add("best", best).add("loss_sum", loss_sum);
  summary.add_to(state);
  fsdp::Checkpoints checkpoints(state, settings.checkpoints);
  int64_t step = summary.steps = checkpoints.resume();
  const auto events = training::open_event_log(mesh, settings.event_folder, step);
  terminal::StatusLine status(mesh.rank() == 0 ? stdout : nullptr, "epoch", settings.epochs, 1,
                              cursor.position(step).epoch);
  std::string evaluated;  // the last evaluation, as text
  while (true) {
    const auto [epoch, used] = cursor.position(step);
    const bool ends_epoch = epoch > 0 && used == 0;
    // A run that was stopped during an evaluation resumes with this evaluation.
    if (evaluation.is_due(step, ends_epoch) && step > 0 && !best.is_evaluated(step)) {
      const auto found = evaluate(engine, model, held_out, checkpoints);
      if (!found) return;
      best.update(state, step, found->metric(evaluation.metric_for_best_model));
      if (events) {
        events->scalar("eval/accuracy", step, found->accuracy);
        events->scalar("eval/loss", step, found->loss);
      }
      evaluated = fmt::format("accuracy {:.4f}  best {:.4f}  ", found->accuracy, best.metric());
    }
    if (ends_epoch) {
      status.update(epoch, fmt::format("loss {:.4f}  {}lr {:.2e}", loss_sum / seen.count(),
                                       evaluated, optimizer.lr()));
      loss_sum = 0;
    }
    if (step >= steps || best.stops()) break;

    place.step = step + 1;
    training::StepMeter meter(engine);
    const fsdp::GlobalBatch batch = cursor.batch(step);
    meter.has_batch();
    double loss_of_rank = 0;
    for (const fsdp::MicroBatch& mine : batch.micro_batches) {
      const fsdp::GradSync sync(engine, &mine == &batch.micro_batches.back());
      const auto [images, labels] = seen.picked(mine.samples);
      const at::Tensor logits = engine.forward(model, moved(images));
      const at::Tensor loss = at::cross_entropy_loss(logits.to(torch::kFloat32), labels, {},
                                                     at::Reduction::Mean, -100, kSmoothing);
      (loss * mine.weight).backward();  // so that each image of the batch counts equally
      loss_of_rank += loss.item<double>() * mine.weight;
    }
    if (!engine.options().optimizer_in_backward) optimizer.clip_grad_norm(1.0);
    const double lr = optimizer.lr();
    const fsdp::StepReport report = optimizer.step();
    if (report.skipped()) status.note("a step was skipped: its gradient is not finite");
    optimizer.zero_grad();
    schedule.step();
    const double loss = mesh.mean(loss_of_rank, "loss");
    loss_sum += loss * batch.sample_count;
    training::StepRecord record = meter.finish(
        {.step = step + 1, .loss = loss, .lr = lr, .samples = batch.sample_count}, report);
    record.save = checkpoints.completed_save();
    summary.add(record);
    if (events) training::log_step(*events, record);
    if (checkpoints.after_step(++step)) return;
  }
  checkpoints.finish();
  if (best.stops()) status.note(fmt::format("stopped early after step {}", step));
  summary.add(checkpoints.completed_save());
  status.interrupt(training::summary_text(engine, summary));
  best.load(state);
  if (!output.empty()) fsdp::save_weights(engine, output / "model.safetensors");
}

int run(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
  Settings settings;
  Digits digits;
  fsdp::run_or_throw_on_all_ranks(mesh, "reading the digits", [&] {
    settings = read_command_line(run);
    if (settings.help.empty()) digits = read_digits(settings.data, /*least=*/kHeldOut + 1);
  });
  mesh.agree("command line", run.other_arguments);
  if (!settings.help.empty()) {
    if (mesh.rank() == 0) std::puts(settings.help.c_str());
    return 0;
  }
  torch::manual_seed(settings.engine.seed);
  ViT model(settings.depth, settings.dropout);
  fsdp::Engine engine(model, mesh, settings.engine);
  torch::manual_seed(settings.engine.seed + mesh.rank());  // for moved() and dropout
  digits = {digits.images.to(engine.device()), digits.labels.to(engine.device())};
  train(engine, model, digits, settings, place);
  return 0;
}

int main(int argc, char** argv) {
  return fsdp::run_program(
      argc, argv, run, {.checkpoints = true, .trains = true, .evaluates = true, .others = true},
      {.engine = {.mixed_precision = {.param_dtype = torch::kBFloat16}, .seed = 42},
       .schedule = {.type = fsdp::LrSchedulerType::kCosine, .warmup_ratio = 0.1},
       .evaluation = {.strategy = fsdp::EvalStrategy::kEpoch}});
}
