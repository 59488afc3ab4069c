#include "bert_qa/run/commands.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fsdp/agreement.h>
#include <fsdp/checkpoint.h>
#include <fsdp/engine.h>
#include <fsdp/program_text.h>
#include <fsdp/run_plan.h>
#include <fsdp/trace.h>

#include <algorithm>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/weight_names.h"
#include "bert_qa/run/inputs.h"
#include "bert_qa/run/memory_report.h"
#include "bert_qa/run/output_folder.h"
#include "bert_qa/run/qa_trainer.h"
#include "bert_qa/run/questions.h"
#include "bert_qa/run/say.h"
#include "bert_qa/run/scoring.h"
#include "bert_qa/run/synthetic_task.h"
#include "bert_qa/run/train_log.h"
#include "bert_qa/run/training_metrics.h"
#include "named_optimizer.h"
#include "terminal/status_line.h"

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

// The step of a run at which memory is measured. The engine allocates nothing new after it.
constexpr int64_t kMeasuredStep = 2;

// Sets the number of threads to --num-threads or to an equal share of the host's cores.
void set_threads(const Settings& settings, const fsdp::Mesh& mesh) {
  const auto hosts = mesh.exchange("host names", mesh.host());
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t share = std::max<int64_t>(1, cores / std::ranges::count(hosts, mesh.host()));
  at::set_num_threads(static_cast<int>(settings.num_threads > 0 ? settings.num_threads : share));
}

// The opened files of a run. The output folder stays locked until the run ends.
struct Opened {
  std::optional<OutputFolder> output;  // on rank 0, if the run has one
  Inputs inputs;
};

Opened open_files(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console) {
  Opened opened;
  Inputs& inputs = opened.inputs;
  fsdp::run_or_throw_on_all_ranks(mesh, "opening the files", [&] {
    std::vector<std::string> notes;
    if (mesh.rank() == 0 && !settings.output_dir.empty()) opened.output.emplace(settings, notes);
    if (mesh.rank() == 0 && !settings.run.trace_file.empty()) {
      fsdp::Trace::check_file(settings.run.trace_file);
    }
    inputs = read_inputs(settings);
    inputs.notes.insert(inputs.notes.begin(), notes.begin(), notes.end());
  });
  for (const std::string& note : inputs.notes) say(console, "note: {}\n", fsdp::printable(note));
  mesh.agree("model configuration", {format_model_config(inputs.config)});
  return opened;
}

// Starts to read the questions while the model is built. Does nothing for synthetic data.
std::future<QuestionSets> start_reading(const Settings& settings, const Inputs& inputs) {
  if (!inputs.tokenizer) return {};
  return read_questions_ahead(settings, *inputs.tokenizer);
}

QuestionSets finish_reading(std::future<QuestionSets> reading, const fsdp::Mesh& mesh,
                            terminal::Console& console) {
  QuestionSets questions;
  fsdp::run_or_throw_on_all_ranks(mesh, "reading the questions", [&] {
    if (reading.valid()) questions = reading.get();
  });
  for (const std::string& note : questions.notes) say(console, "note: {}\n", fsdp::printable(note));
  return questions;
}

struct ShardedModel {
  fsdp::Unit<bert::QuestionAnswering> model;
  std::unique_ptr<fsdp::Engine> engine;
};

fsdp::Options engine_options(const Settings& settings) {
  fsdp::Options options = settings.run.engine;
  options.unit_options = bert::unit_options;
  return options;
}

// Plans a step whose windows all have the maximum length. Chooses the strategy before that, if the
// user has named none. Returns the plan on rank 0. If the step does not fit, throws on all ranks.
std::optional<fsdp::StepPlan> plan_training(Settings& settings, const Inputs& inputs,
                                            const fsdp::Mesh& mesh, terminal::Console& console) {
  const int64_t windows = settings.train.train_batch_size, length = settings.data.max_seq_length;
  const fsdp::RunPlanOptions how{.force = settings.run.force,
                                 .optimizer = optimizer_named(settings.train.optim).kind,
                                 .checkpoints = settings.run.checkpoints,
                                 .rates = settings.rates};
  const auto build = [&] { return fsdp::Unit<bert::QuestionAnswering>(inputs.config); };
  const auto step = [&](auto& model) { return bert::blank_loss(model, windows, length); };
  if (!settings.run.names_strategy) {
    const auto choice = fsdp::choose_strategy(mesh, engine_options(settings), how, build, step);
    settings.run.engine.strategy = choice.strategy;
    if (!choice.reason.empty()) say(console, "strategy: {}\n", choice.reason);
  }
  const auto plan = fsdp::plan_run(mesh, engine_options(settings), how, build, step);
  if (plan && settings.says_all()) {
    say(console, "planned for {} × {} tokens a rank:\n{}\n", windows, length, plan->to_string());
  } else if (plan) {
    say(console, "{}\n", plan->summary());
  }
  return plan;
}

// Builds the model, loads the weights and closes their files. The files are closed because pages of
// a mapped file that were read count as memory of this process.
ShardedModel build_model(const Settings& settings, Inputs& inputs, const fsdp::Mesh& mesh,
                         terminal::Console& console) {
  fsdp::BuildScope building(mesh, engine_options(settings));
  fsdp::Unit<bert::QuestionAnswering> model(inputs.config);
  auto engine = std::make_unique<fsdp::Engine>(model, building);
  const fsdp::SafetensorsFile* head = inputs.head ? &*inputs.head : nullptr;
  if (inputs.weights) {
    const fsdp::LoadReport report =
        fsdp::load_weights(*engine, *inputs.weights, load_options(head));
    for (const std::string& note : notes_of(report))
      say(console, "note: {}\n", fsdp::printable(note));
  } else if (head != nullptr) {
    fsdp::load_weights(*engine, {head, 1}, head_options());
  }
  inputs.weights.reset();
  inputs.head.reset();
  return {std::move(model), std::move(engine)};
}

WindowSource training_source(const Settings& settings, const Inputs& inputs,
                             const QuestionSets& questions) {
  if (!questions.train) return synthetic_source(settings, inputs.config);
  const Windows& all = questions.train->windows();
  return {.count = all.window_count(),
          .length = [&all](int64_t, int64_t window) { return all.window_length(window); },
          .make_batch = [&all](int64_t, std::span<const int64_t> windows,
                               int64_t length) { return make_batch(all, windows, length); }};
}

// Compares the training data of the ranks, because ranks with equal command lines may read
// different files. Tokens of generated windows are not counted, because there may be too many
// windows.
void agree_on_data(const fsdp::Mesh& mesh, const WindowSource& source,
                   const TrainingWindows& windows, bool are_read) {
  constexpr int64_t kFirstEpoch = 0;
  int64_t tokens = 0;
  for (int64_t window = 0; are_read && window < source.count; ++window) {
    tokens += source.length(kFirstEpoch, window);
  }
  mesh.agree("training data", {fmt::format("{} windows of {} tokens", source.count, tokens),
                               fmt::format("{} steps", windows.steps_to_run())});
}

// Throws if all steps were skipped. The model is then unchanged, and the run must not write it.
void refuse_untrained(const training::TrainSummary& summary, const fsdp::Mesh& mesh) {
  fsdp::run_or_throw_on_all_ranks(mesh, "counting the steps", [&] {
    if (summary.steps == 0 || summary.skipped_steps < summary.steps) return;
    throw fsdp::StateError(
        {.what = fmt::format("nothing was learned: all {} steps were skipped", summary.steps),
         .where = "no model was written",
         .cause = fmt::format(
             "the gradients of these steps were not finite; the first such gradient was in {}",
             summary.first_nonfinite),
         .hint = "use --param-dtype float32, a smaller --learning-rate, or other data or weights"});
  });
}

// The outputs of a training.
struct TrainingReports {
  fsdp::ErrorPlace& place;  // in error lines
  terminal::Console& console;
  const std::optional<OutputFolder>& output;  // on rank 0
  const std::optional<fsdp::StepPlan>& plan;  // on rank 0
};

// Opens the log after `done` steps. It continues the log of the run that it continues.
std::unique_ptr<TrainLog> open_log(const Settings& settings, const OutputFolder& output,
                                   int64_t done, const fsdp::Mesh& mesh) {
  const std::filesystem::path file = settings.output_dir / "train_log.jsonl";
  if (done == 0) return std::make_unique<TrainLog>(file);
  if (!output.continues_run()) {
    mesh.note(fmt::format("{}: begins after step {}", file.filename().string(), done));
    return std::make_unique<TrainLog>(file);
  }
  std::string note;
  auto log = std::make_unique<TrainLog>(file, done, note);
  mesh.note(note);
  return log;
}

// Shows the memory and traffic of a step beside the plan.
void show_measured(const Scoring& scoring, const TrainingReports& at,
                   terminal::StatusLine& progress, const training::StepRecord& record,
                   const training::TrainSummary& so_far) {
  const Settings& settings = scoring.settings;
  const fsdp::Engine& engine = scoring.engine;
  const int64_t micro_batches = settings.train.accumulation_steps;
  if (!settings.says_all()) {
    if (at.plan) progress.note(measured_line(engine, *at.plan, record, micro_batches));
    return;
  }
  std::string report =
      planned_and_measured(engine.memory_plan(), engine.stats().memory.in_use, record.peak);
  report += device_use_of(engine, at.plan, so_far);
  if (at.plan) report += planned_and_taken(*at.plan, record.sent, micro_batches);
  progress.interrupt(report);
}

// Resumes and trains. Returns false if a signal ended the training early.
bool train(const Scoring& scoring, QaTrainer& trainer, const TrainingWindows& windows,
           const TrainingReports& at) {
  const Settings& settings = scoring.settings;
  const fsdp::Engine& engine = scoring.engine;
  const fsdp::Mesh& mesh = engine.mesh();
  const int64_t done = trainer.resume();
  if (settings.says_all()) say(at.console, "{}\n", engine.describe());
  const int threads = at::get_num_threads();
  say(at.console, "{} windows: {} steps, {} an epoch; {} {} a rank\n\n", windows.window_count(),
      windows.total_steps(), windows.steps_per_epoch(), threads,
      threads == 1 ? "thread" : "threads");
  std::unique_ptr<TrainLog> log;
  fsdp::run_or_throw_on_all_ranks(mesh, "opening the training log", [&] {
    if (mesh.rank() == 0) log = open_log(settings, at.output.value(), done, mesh);
  });
  const auto events =
      training::open_event_log(mesh, settings.run.reports.event_folder(settings.output_dir), done);
  terminal::StatusLine progress(at.console, "step", windows.steps_to_run(),
                                settings.train.logging_steps, done);
  at.place.step = done + 1;  // errors name the step that runs, also before its record exists
  const auto on_step = [&](const training::StepRecord& record,
                           const training::TrainSummary& so_far) {
    at.place.step = record.step + 1;
    if (log) log->append(record);
    if (events) training::log_step(*events, record);
    if (record.skipped) {
      progress.note(fmt::format("step {} was skipped: its gradient is not finite, first in {}",
                                record.step, record.first_nonfinite));
    }
    progress.update(record.step, {.epoch = windows.epochs_after(record.step),
                                  .loss = record.loss,
                                  .learning_rate = record.lr,
                                  .samples = record.samples});
    if (record.step == done + kMeasuredStep) show_measured(scoring, at, progress, record, so_far);
  };
  terminal::Console silent(nullptr);
  const auto evaluate = [&](int64_t step) -> std::optional<double> {
    const auto metrics = score_model(scoring, {silent, [&] { return trainer.poll(); }});
    if (!metrics) return std::nullopt;
    if (events) training::log_evaluation(*events, step, *metrics);
    progress.note(fmt::format("step {}: {}", step, scores_text(*metrics)));
    return metrics->at(settings.run.evaluation.metric_for_best_model).get<double>();
  };
  const bool is_whole = trainer.train(on_step, evaluate);
  if (trainer.best().stops()) {
    progress.note(fmt::format("stopped early: {} was best after step {}",
                              settings.run.evaluation.metric_for_best_model,
                              trainer.best().step()));
  }
  return is_whole;
}

// Writes the trace after all other files. So if the disk is full or slow, only the trace is lost.
void write_trace(const Settings& settings, terminal::Console& console,
                 std::optional<fsdp::Trace>& trace) {
  if (!trace) return;
  trace->write(settings.run.trace_file);
  trace.reset();
  say(console, "the trace was written to {}\n", settings.run.trace_file.string());
}

// Writes metrics.json on rank 0. If that fails, all ranks throw.
void write_metrics(const fsdp::Mesh& mesh, const ordered_json& metrics,
                   const std::filesystem::path& folder) {
  fsdp::run_or_throw_on_all_ranks(mesh, "writing the metrics", [&] {
    if (mesh.rank() == 0) write_json(folder / "metrics.json", metrics);
  });
}

}  // namespace

void initialise(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console) {
  set_threads(settings, mesh);
  Opened opened = open_files(settings, mesh, console);
  ShardedModel sharded = build_model(settings, opened.inputs, mesh, console);
  const SavedModel saved = save_model(*sharded.engine, opened.inputs, settings, console);
  const int64_t taken = mesh.max(sharded.engine->stats().memory.device_peak);
  const int64_t limit = settings.run.engine.memory_limit;
  say(console, "{} with random weights was written to {}\n{}", settings.model.preset,
      saved.folder.string(),
      limit == 0 ? ""
                 : fmt::format("device: at most {} held, limit {}\n", fsdp::format_bytes(taken),
                               fsdp::format_bytes(limit)));
  end_if_elsewhere(mesh, saved, settings.output_dir);
}

void finetune(Settings settings, const fsdp::Mesh& mesh, fsdp::ErrorPlace& place,
              terminal::Console& console) {
  set_threads(settings, mesh);
  Opened opened = open_files(settings, mesh, console);
  Inputs& inputs = opened.inputs;
  // The plan comes first: a step that does not fit is refused before the model is allocated.
  const std::optional<fsdp::StepPlan> plan = plan_training(settings, inputs, mesh, console);
  std::future<QuestionSets> reading = start_reading(settings, inputs);
  ShardedModel sharded = build_model(settings, inputs, mesh, console);
  const QuestionSets questions = finish_reading(std::move(reading), mesh, console);
  std::optional<TrainingWindows> windows;
  const WindowSource source = training_source(settings, inputs, questions);
  fsdp::run_or_throw_on_all_ranks(mesh, "counting the windows", [&] {
    windows.emplace(source, settings, mesh.rank(), mesh.world_size());
    settings.run.schedule.make(windows->total_steps(), settings.train.learning_rate);
  });
  agree_on_data(mesh, source, *windows, questions.train != nullptr);

  std::optional<fsdp::Trace> trace;
  if (!settings.run.trace_file.empty()) trace.emplace(*sharded.engine);
  QaTrainer trainer(sharded.model, *sharded.engine, *windows, settings);
  if (plan && plan->time) trainer.set_predicted_ms(static_cast<double>(plan->time->total_ns) / 1e6);
  const training::TrainSummary& summary = trainer.summary();
  const auto end_early = [&] {
    say(console, "stopped by a signal after step {}; --resume auto continues\n", summary.steps);
    write_trace(settings, console, trace);
  };
  const TrainingReports reports{place, console, opened.output, plan};
  const Scoring scoring{settings, sharded.model, *sharded.engine, inputs.config,
                        questions.validation.get()};
  if (!train(scoring, trainer, *windows, reports)) return end_early();
  ordered_json metrics = training_metrics(summary, *sharded.engine, plan);
  const std::string device = device_use_of(*sharded.engine, plan, summary);
  say(console, "{}{}", training::summary_text(*sharded.engine, summary), device);
  if (settings.ablated()) {
    metrics["ablated"] = "communication";
    write_metrics(mesh, metrics, settings.output_dir);
    say(console, "communication was off: these are times of a run that learned nothing\n");
    return write_trace(settings, console, trace);
  }
  refuse_untrained(summary, mesh);
  trainer.load_best();
  const SavedModel saved = save_model(*sharded.engine, inputs, settings, console);
  const Evaluation evaluation{console, [&] { return trainer.poll(); }};
  const std::optional<ordered_json> scores =
      scoring.questions != nullptr ? answer_questions(scoring, saved.folder, evaluation)
                                   : score_model(scoring, evaluation);
  if (!scores) return end_early();
  metrics.update(*scores);
  say(console, "{}", scores_text(metrics, "\n"));
  write_metrics(mesh, metrics, saved.folder);
  say(console, "the model was written to {}\n", saved.folder.string());
  end_if_elsewhere(mesh, saved, settings.output_dir);
  write_trace(settings, console, trace);
}

void answer_file(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console) {
  set_threads(settings, mesh);
  Opened opened = open_files(settings, mesh, console);
  Inputs& inputs = opened.inputs;
  std::future<QuestionSets> reading = start_reading(settings, inputs);
  ShardedModel sharded = build_model(settings, inputs, mesh, console);
  const QuestionSets questions = finish_reading(std::move(reading), mesh, console);
  const Scoring scoring{settings, sharded.model, *sharded.engine, inputs.config,
                        questions.validation.get()};
  const ordered_json metrics = answer_questions(scoring, settings.output_dir, {console}).value();
  say(console, "{}", scores_text(metrics, "\n"));
  if (settings.output_dir.empty()) return;
  write_metrics(mesh, metrics, settings.output_dir);
  say(console, "the answers were written to {}\n", settings.output_dir.string());
}

}  // namespace bert_qa
