// Trains a GPT to write like a text, byte by byte: fsdp-run -n 2 gpt
#include "models/gpt.h"

#include <fsdp/fsdp.h>
#include <fsdp/run_plan.h>
#include <fsdp/safetensors.h>
#include <fsdp/whole_file.h>
#include <torch/torch.h>

#include <filesystem>

#include "named_optimizer.h"
#include "own_flags.h"
#include "terminal/status_line.h"
#include "training/step_record.h"
#include "training/train_summary.h"

struct Settings {
  std::string train_file = GPT_TEXT, preset = "mini", weights, output_dir, prompt, help;
  std::string optim = "adamw_torch";
  int64_t batch_size = 16, max_steps = 1000;
  double learning_rate = 2e-3;
  fsdp::Options engine;
  fsdp::CheckpointOptions checkpoints;
  fsdp::ScheduleOptions schedule;
  std::filesystem::path event_folder;
  bool force = false;  // run a step even if its plan does not fit
  gpt::GptConfig model;
  gpt::Sampling sampling{.tokens = 600, .temperature = 0.8};
};

Settings read_command_line(const fsdp::RunOptions& run) {
  Settings settings{.engine = run.engine,
                    .checkpoints = run.checkpoints,
                    .schedule = run.schedule,
                    .force = run.force};
  OwnFlags flags(run);
  flags.read("--train-file", settings.train_file, "the text to learn, of any bytes");
  flags.read("--preset", settings.preset, "the model's size: " + gpt::preset_names());
  settings.model = gpt::preset_config(settings.preset);
  settings.model.vocabulary = 256;  // bytes
  flags.read("--block-size", settings.model.block_size,
             "the number of bytes that the model sees, 1 or more", 1);
  flags.read("--weights", settings.weights,
             "a file to start from, of the same preset and block size");
  flags.read("--max-steps", settings.max_steps, "the number of steps to train; 0: only generate");
  flags.read("--per-device-train-batch-size", settings.batch_size,
             "the number of blocks, 1 or more", 1);
  flags.read("--learning-rate", settings.learning_rate, "a number, reached after the warm-up");
  flags.read("--optim", settings.optim, "one of " + optimizer_names());
  flags.read("--seed", settings.engine.seed,
             "a whole number, for weights, order and generated text");
  flags.read("--output-dir", settings.output_dir, "the folder in which to save model.safetensors");
  flags.read("--prompt", settings.prompt, "the beginning of the generated text");
  flags.read("--max-new-tokens", settings.sampling.tokens, "the number of bytes to generate");
  flags.read("--temperature", settings.sampling.temperature, "a number, 0.01 or more; low: likely",
             0.01);
  settings.sampling.seed = settings.engine.seed;
  settings.checkpoints.set_default_folder(settings.output_dir);
  settings.help = flags.finish({.plans = true, .checkpoints = true, .trains = true});
  settings.schedule.make(settings.max_steps, settings.learning_rate);  // refuses wrong values
  prepare_engine(settings.optim, settings.engine);                     // does so, too
  settings.event_folder = run.reports.event_folder(settings.output_dir);
  return settings;
}

std::vector<int64_t> bytes_of(const std::string& text) {
  const std::vector<uint8_t> bytes(text.begin(), text.end());  // char is signed
  return {bytes.begin(), bytes.end()};
}

at::Tensor read_text(const std::string& path, int64_t block_size) {
  const auto bytes = bytes_of(fsdp::read_file(path));
  if (std::ssize(bytes) > block_size) return torch::tensor(bytes);
  refuse(fsdp::ExitCode::kCorruptData, path + " is too short",
         "use a text longer than --block-size");
}

bool train_to_the_end(fsdp::Unit<gpt::Gpt>& model, fsdp::Engine& engine, const at::Tensor& text,
                      const Settings& settings, fsdp::ErrorPlace& place) {
  const fsdp::Mesh& mesh = engine.mesh();
  const auto made = make_optimizer(engine, settings.optim, {.weight_decay = 0.1});
  fsdp::Optimizer& optimizer = *made;
  const int64_t steps = settings.max_steps;
  const fsdp::LrSchedule schedule = settings.schedule.make(steps, settings.learning_rate);
  // A sample is a block and the byte after it. Every byte of the text begins a sample.
  const at::Tensor samples = text.unfold(0, settings.model.block_size + 1, /*step=*/1);
  fsdp::SampleCursor cursor(fsdp::BatchSampler({.sample_count = samples.size(0),
                                                .world_size = mesh.world_size(),
                                                .rank = mesh.rank(),
                                                .batch_size_per_rank = settings.batch_size,
                                                .seed = settings.engine.seed}));
  const int64_t epoch_steps = cursor.sampler().batches_per_epoch();
  training::TrainSummary summary;
  fsdp::TrainingState state(engine);
  state.add("optimizer", optimizer).add("data", cursor);
  summary.add_to(state);
  fsdp::Checkpoints checkpoints(state, settings.checkpoints);
  int64_t step = summary.steps = checkpoints.resume();
  const auto events = training::open_event_log(mesh, settings.event_folder, step);
  using Slice = std::pair<at::Tensor, fsdp::MicroBatch>;
  fsdp::BatchTransfer<Slice> batches(
      engine, steps - step, [&, start = step](int64_t batch) -> Slice {
        const auto mine = cursor.batch(start + batch).micro_batches.front();
        return {samples.index_select(0, torch::tensor(mine.samples)), mine};
      });
  terminal::StatusLine status(mesh.rank() == 0 ? stdout : nullptr, "step", steps, /*every=*/50,
                              step);
  while (step < steps) {
    place.step = step + 1;
    training::StepMeter meter(engine);
    const auto [ids, mine] = batches.next();
    meter.has_batch();
    const at::Tensor logits = model(ids.slice(1, 0, -1));
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1).flatten());
    optimizer.set_lr(settings.learning_rate * schedule.factor(step));
    (loss * mine.weight).backward();  // so that the mean over ranks is that over all samples
    if (!settings.engine.optimizer_in_backward) optimizer.clip_grad_norm(1.0);
    const fsdp::StepReport report = optimizer.step();
    if (report.skipped()) status.note("a step was skipped: its gradient is not finite");
    optimizer.zero_grad();

    const double mean = mesh.mean(loss, mine.weight, "loss");
    const int64_t blocks = settings.batch_size * mesh.world_size();
    training::StepRecord record = meter.finish({.step = step + 1,
                                                .loss = mean,
                                                .lr = optimizer.lr(),
                                                .samples = blocks,
                                                .tokens = blocks * settings.model.block_size},
                                               report);
    record.save = checkpoints.completed_save();
    summary.add(record);
    if (events) training::log_step(*events, record);
    status.update(step + 1, {.epoch = static_cast<double>(step + 1) / epoch_steps,
                             .loss = mean,
                             .learning_rate = record.lr,
                             .samples = blocks});
    if (checkpoints.after_step(++step)) return false;
  }
  checkpoints.finish();
  summary.add(checkpoints.completed_save());
  status.interrupt(training::summary_text(engine, summary));
  return true;
}

int run(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
  Settings settings;
  at::Tensor text;
  // If this throws on any rank, all ranks end before anything is built. The error is printed once.
  fsdp::run_or_throw_on_all_ranks(mesh, "reading the text", [&] {
    settings = read_command_line(run);
    if (!settings.help.empty()) return;
    if (settings.max_steps > 0) text = read_text(settings.train_file, settings.model.block_size);
    if (!settings.output_dir.empty()) {
      std::error_code ignored;  // the writer reports errors of the folder and leaves no file
      std::filesystem::create_directories(settings.output_dir, ignored);
      fsdp::SafetensorsWriter(settings.output_dir + "/model.safetensors", {});
    }
  });
  mesh.agree("command line", run.other_arguments);  // otherwise ranks would build different models
  if (!settings.help.empty()) {
    if (mesh.rank() == 0) std::puts(settings.help.c_str());
    return 0;
  }

  const bool says_all = run.log_level == fsdp::LogLevel::kDebug;
  if (settings.max_steps > 0) {
    const fsdp::RunPlanOptions how{.force = settings.force,
                                   .optimizer = optimizer_named(settings.optim).kind,
                                   .checkpoints = settings.checkpoints};
    const auto build = [&] { return fsdp::Unit<gpt::Gpt>(settings.model); };
    const auto step = [&](auto& model) {
      return gpt::blank_loss(model, settings.batch_size, settings.model.block_size);
    };
    if (!run.names_strategy) {
      const auto choice = fsdp::choose_strategy(mesh, settings.engine, how, build, step);
      settings.engine.strategy = choice.strategy;
      if (mesh.rank() == 0 && !choice.reason.empty()) {
        std::puts(("strategy: " + choice.reason).c_str());
      }
    }
    const auto plan = fsdp::plan_run(mesh, settings.engine, how, build, step);
    if (plan) std::puts((says_all ? plan->to_string() : plan->summary()).c_str());
  }
  fsdp::BuildScope building(mesh, settings.engine);
  fsdp::Unit<gpt::Gpt> model(settings.model);  // each unit is sharded as soon as it exists
  fsdp::Engine engine(model, building);
  settings.sampling.device = engine.device();
  if (!settings.weights.empty()) fsdp::load_weights(engine, settings.weights);
  if (mesh.rank() == 0 && says_all) std::puts(engine.describe().c_str());
  if (settings.max_steps > 0 && !train_to_the_end(model, engine, text, settings, place)) return 0;
  if (!settings.output_dir.empty())
    fsdp::save_weights(engine, settings.output_dir + "/model.safetensors");

  std::string written;
  for (int64_t byte : gpt::generate(model, bytes_of("\n" + settings.prompt), settings.sampling))
    written += byte < ' ' && byte != '\n' ? '?' : static_cast<char>(byte);  // no control bytes
  if (mesh.rank() == 0) std::puts(written.c_str());
  return 0;
}

int main(int argc, char** argv) {
  return fsdp::run_program(argc, argv, run,
                           {.plans = true, .checkpoints = true, .trains = true, .others = true},
                           {.engine = {.seed = 42}, .schedule = {.warmup_ratio = 0.05}});
}
