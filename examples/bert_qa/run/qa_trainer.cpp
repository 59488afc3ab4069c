#include "bert_qa/run/qa_trainer.h"

#include <fsdp/prefetcher.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace bert_qa {
namespace {

// The number of steps whose rows are prepared ahead. It is large enough to hide batches that take
// long to prepare.
constexpr int64_t kStepsAhead = 4;

fsdp::AdamWOptions adamw_options(const TrainSettings& settings) {
  return {.lr = settings.learning_rate,
          .beta1 = settings.adam_beta1,
          .beta2 = settings.adam_beta2,
          .eps = settings.adam_epsilon,
          .weight_decay = settings.weight_decay,
          .bias_correction = settings.bias_correction,
          .groups = {{.match = fsdp::is_bias_or_norm, .weight_decay = 0.0}}};
}

fsdp::LrSchedule lr_schedule(const TrainSettings& settings, int64_t total_steps) {
  const auto by_ratio = static_cast<int64_t>(std::ceil(settings.warmup_ratio * total_steps));
  return {.shape = settings.schedule,
          .warmup_steps = settings.warmup_steps > 0 ? settings.warmup_steps : by_ratio,
          .total_steps = total_steps};
}

// Without clipping the norm is still measured, for the log and to detect values that are not
// finite.
double clip_limit(const TrainSettings& settings) {
  return settings.max_grad_norm > 0 ? settings.max_grad_norm
                                    : std::numeric_limits<double>::infinity();
}

StepTensors tensors_of(StepInput input) {
  StepTensors tensors{.slices = std::move(input.slices), .batches = {}};
  for (const QaBatch& rows : input.rows) tensors.batches.push_back(make_tensors(rows));
  return tensors;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void TrainSummary::add(const StepRecord& record) {
  steps += 1;
  skipped_steps += record.skipped ? 1 : 0;
  if (record.skipped && first_nonfinite.empty()) {
    first_nonfinite = record.first_nonfinite;
  }
  windows += record.windows;
  seconds += record.seconds;
  last_loss = record.loss;
  exposed_comm_ms += record.exposed_comm_ms;
  input_ms += record.input_ms;
  peak_engine_bytes = std::max(peak_engine_bytes, record.peak.total());
  peak_device_bytes = std::max(peak_device_bytes, record.device_peak_bytes);
  peak_host_bytes = std::max(peak_host_bytes, record.host_peak.total());
  sent_bytes = record.sent.total_bytes();
}

QaTrainer::QaTrainer(fsdp::Unit<bert::QuestionAnswering> model, fsdp::Engine& engine,
                     TrainingWindows& windows, const TrainSettings& settings,
                     const fsdp::CheckpointOptions& checkpoints)
    : model_(std::move(model)),
      engine_(engine),
      windows_(windows),
      settings_(settings),
      optimizer_(engine, adamw_options(settings)),
      schedule_(lr_schedule(settings, windows.total_steps())),
      state_(engine),
      checkpoints_(state_, checkpoints) {
  state_.add("optimizer", optimizer_).add("data", windows.cursor());
  if (engine.options().mixed_precision.param_dtype == torch::kFloat16) {
    state_.add("scaler", scaler_.emplace(engine));
  }
  state_.add("skipped_steps", summary_.skipped_steps)
      .add("first_nonfinite", summary_.first_nonfinite)
      .add("windows", summary_.windows)
      .add("seconds", summary_.seconds)
      .add("last_loss", summary_.last_loss)
      .add("exposed_comm_ms", summary_.exposed_comm_ms)
      .add("input_ms", summary_.input_ms);
}

int64_t QaTrainer::resume() {
  summary_.steps = checkpoints_.resume();
  if (summary_.steps > 0) windows_.resume(summary_.steps);
  schedule_ = lr_schedule(settings_, windows_.total_steps());
  return summary_.steps;
}

bool QaTrainer::train(const OnStep& on_step) {
  model_->train();
  const int64_t begin = summary_.steps;
  const int64_t count = std::max<int64_t>(windows_.steps_to_run() - begin, 0);
  // Two stages ahead of the step: a thread makes rows, then they are copied to the device.
  fsdp::Prefetcher<StepInput> rows(
      count, kStepsAhead, [this, begin](int64_t index) { return windows_.input(begin + index); });
  fsdp::BatchTransfer<StepTensors> inputs(engine_, count,
                                          [&](int64_t) { return tensors_of(rows.next()); });
  for (int64_t step = begin; step < begin + count;) {
    StepRecord record = train_step(step, inputs);
    record.save = checkpoints_.completed_save();
    summary_.add(record);
    summary_.planned_engine_bytes = engine_.memory_plan().peak_bytes();
    on_step(record, summary_);
    if (checkpoints_.after_step(++step)) return false;
  }
  checkpoints_.finish();
  return true;
}

StepRecord QaTrainer::train_step(int64_t step, fsdp::BatchTransfer<StepTensors>& inputs) {
  const auto began = std::chrono::steady_clock::now();
  const fsdp::EngineStats before = engine_.stats();
  engine_.reset_peak_memory();  // each record then holds the peak of its own step

  const auto [slices, batches] = inputs.next();
  const double input_seconds = seconds_since(began);
  double loss = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    loss += forward_backward(batches[i], slices.micro_batches[i].weight);
  }
  optimizer_.clip_grad_norm(clip_limit(settings_));
  optimizer_.set_lr(settings_.learning_rate * schedule_.factor(step));
  const fsdp::StepReport report = optimizer_.step();
  if (scaler_) scaler_->update(report);
  optimizer_.zero_grad();
  loss = engine_.mesh().mean(loss, "loss");

  const fsdp::EngineStats stats = engine_.stats();
  return {
      .step = step + 1,
      .loss = loss,
      .grad_norm = report.gradients.norm(),
      .lr = optimizer_.lr(),
      .skipped = report.skipped(),
      .first_nonfinite = report.gradients.first_nonfinite(),
      .windows = slices.sample_count,
      .seconds = seconds_since(began),
      .exposed_comm_ms = static_cast<double>(stats.exposed_comm_ns - before.exposed_comm_ns) / 1e6,
      .input_ms = input_seconds * 1e3,
      .peak = stats.memory.peak,
      .device_peak_bytes = stats.memory.device_peak,
      .host_peak = stats.memory.host_peak,
      .sent = stats.sent - before.sent};
}

// Runs forward and backward of a micro-batch and returns its part of the loss. The loss is summed
// over micro-batches and averaged over ranks. `weight` turns this into the mean over all windows.
double QaTrainer::forward_backward(const Batch& batch, double weight) {
  const at::Tensor logits_BS2 = model_(batch.ids_BS, batch.segments_BS, batch.attention_mask_BS);
  const at::Tensor sum =
      bert::span_loss_sum(logits_BS2.to(at::kFloat), batch.first_B, batch.last_B);
  const at::Tensor loss = sum * (weight / static_cast<double>(batch.ids_BS.size(0)));
  (scaler_ ? scaler_->scale(loss) : loss).backward();
  return loss.item<double>();
}

}  // namespace bert_qa
