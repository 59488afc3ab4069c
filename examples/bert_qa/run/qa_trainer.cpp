#include "bert_qa/run/qa_trainer.h"

#include <fsdp/prefetcher.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "named_optimizer.h"

namespace bert_qa {
namespace {

// The number of steps whose rows are prepared ahead. It is large enough to hide batches that take
// long to prepare.
constexpr int64_t kStepsAhead = 4;

std::unique_ptr<fsdp::Optimizer> optimizer_of(fsdp::Engine& engine, const TrainSettings& settings) {
  return make_optimizer(engine, settings.optim,
                        {.lr = settings.learning_rate,
                         .weight_decay = settings.weight_decay,
                         .beta1 = settings.adam_beta1,
                         .beta2 = settings.adam_beta2,
                         .eps = settings.adam_epsilon,
                         .bias_correction = settings.bias_correction});
}

// Without clipping the norm is still measured, for the log and to detect values that are not
// finite.
double clip_limit(const TrainSettings& settings) {
  return settings.max_grad_norm > 0 ? settings.max_grad_norm
                                    : std::numeric_limits<double>::infinity();
}

fsdp::BestModelOptions best_options(const Settings& settings) {
  const fsdp::EvaluationOptions& evaluation = settings.run.evaluation;
  const bool is_kept = evaluation.load_best_model_at_end.value_or(false);
  return {.evaluation = evaluation,
          .folder = is_kept ? settings.output_dir / "best" : "",
          .checkpoints = settings.run.checkpoints.folder};
}

StepTensors tensors_of(StepInput input) {
  StepTensors tensors{.slices = std::move(input.slices), .batches = {}, .tokens = input.tokens};
  for (const QaBatch& rows : input.rows) tensors.batches.push_back(make_tensors(rows));
  return tensors;
}

}  // namespace

QaTrainer::QaTrainer(fsdp::Unit<bert::QuestionAnswering> model, fsdp::Engine& engine,
                     TrainingWindows& windows, const Settings& settings)
    : model_(std::move(model)),
      engine_(engine),
      windows_(windows),
      settings_(settings.train),
      run_(settings.run),
      made_(optimizer_of(engine, settings.train)),
      optimizer_(*made_),
      schedule_(run_.schedule.make(windows.total_steps(), settings_.learning_rate)),
      best_(best_options(settings)),
      state_(engine),
      checkpoints_(state_, settings.run.checkpoints) {
  state_.add("optimizer", optimizer_).add("data", windows.cursor()).add("best", best_);
  if (engine.options().mixed_precision.param_dtype == torch::kFloat16) {
    state_.add("scaler", scaler_.emplace(engine));
  }
  summary_.add_to(state_);
}

int64_t QaTrainer::resume() {
  summary_.steps = checkpoints_.resume();
  if (summary_.steps > 0) windows_.resume(summary_.steps);
  schedule_ = run_.schedule.make(windows_.total_steps(), settings_.learning_rate);
  return summary_.steps;
}

bool QaTrainer::train(const OnStep& on_step, const Evaluate& evaluate) {
  model_->train();
  const int64_t begin = summary_.steps;
  const int64_t count = std::max<int64_t>(windows_.steps_to_run() - begin, 0);
  // Two stages ahead of the step: a thread makes rows, then they are copied to the device.
  fsdp::Prefetcher<StepInput> rows(
      count, kStepsAhead, [this, begin](int64_t index) { return windows_.input(begin + index); });
  fsdp::BatchTransfer<StepTensors> inputs(engine_, count,
                                          [&](int64_t) { return tensors_of(rows.next()); });
  for (int64_t step = begin;;) {
    // A run that was stopped during an evaluation resumes with this evaluation.
    if (!evaluate_if_due(step, evaluate)) return false;
    if (step == begin + count || best_.stops()) {
      checkpoints_.finish();
      summary_.add(checkpoints_.completed_save());
      return true;
    }
    training::StepRecord record = train_step(step, inputs);
    record.save = checkpoints_.completed_save();
    record.predicted_ms = predicted_ms_;
    summary_.add(record);
    summary_.planned_engine_bytes = engine_.memory_plan().peak_bytes();
    on_step(record, summary_);
    if (checkpoints_.after_step(++step)) return false;
  }
}

// Returns false if a signal must end the training.
bool QaTrainer::evaluate_if_due(int64_t step, const Evaluate& evaluate) {
  const bool ends_epoch =
      windows_.cursor().position(step).samples == 0 || step == windows_.total_steps();
  if (step == 0 || !run_.evaluation.is_due(step, ends_epoch) || best_.is_evaluated(step)) {
    return true;
  }
  const std::optional<double> metric = evaluate(step);
  if (!metric) return false;
  best_.update(state_, step, *metric);
  model_->train();
  return true;
}

training::StepRecord QaTrainer::train_step(int64_t step, fsdp::BatchTransfer<StepTensors>& inputs) {
  training::StepMeter meter(engine_);  // each record then holds the peak of its own step
  const auto [slices, batches, tokens] = inputs.next();
  meter.has_batch();
  double loss = 0;
  optimizer_.set_lr(settings_.learning_rate * schedule_.factor(step));
  for (size_t i = 0; i < batches.size(); ++i) {
    loss += forward_backward(batches[i], slices.micro_batches[i].weight);
  }
  if (!run_.engine.optimizer_in_backward) optimizer_.clip_grad_norm(clip_limit(settings_));
  const fsdp::StepReport report = optimizer_.step();
  if (scaler_) scaler_->update(report);
  optimizer_.zero_grad();
  loss = engine_.mesh().mean(loss, "loss");
  return meter.finish({.step = step + 1,
                       .loss = loss,
                       .lr = optimizer_.lr(),
                       .samples = slices.sample_count,
                       .tokens = tokens},
                      report);
}

// Runs forward and backward of a micro-batch and returns its part of the loss. The loss is summed
// over micro-batches and averaged over ranks. `weight` turns this into the mean over all windows.
double QaTrainer::forward_backward(const Batch& batch, double weight) {
  const bert::Logits logits = model_(batch.ids_BS, batch.segments_BS, batch.attention_mask_BS);
  const at::Tensor sum = bert::loss_sum(
      logits, {.first_B = batch.first_B, .last_B = batch.last_B, .types_B = batch.types_B});
  const at::Tensor loss = sum * (weight / static_cast<double>(batch.ids_BS.size(0)));
  (scaler_ ? scaler_->scale(loss) : loss).backward();
  return loss.item<double>();
}

}  // namespace bert_qa
