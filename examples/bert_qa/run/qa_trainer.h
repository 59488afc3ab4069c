// Holds the training loop.
#pragma once

#include <fsdp/batch_transfer.h>
#include <fsdp/best_model.h>
#include <fsdp/checkpoints.h>
#include <fsdp/engine.h>
#include <fsdp/loss_scaler.h>
#include <fsdp/optim.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/batch.h"
#include "bert_qa/run/settings.h"
#include "bert_qa/run/training_windows.h"
#include "models/bert/bert_model.h"
#include "training/step_record.h"
#include "training/train_summary.h"

namespace bert_qa {

// The part of a step that one rank computes.
struct StepTensors {
  fsdp::GlobalBatch slices;
  std::vector<Batch> batches;  // one for each micro-batch
  int64_t tokens = 0;          // of all ranks
};

// The training loop. All ranks run the same steps with the same collectives, also ranks without
// windows. Losses and gradients are means over all windows of a step, with equal weights. A thread
// prepares batches ahead of time. On a GPU, a batch is on the device before its step begins.
class QaTrainer {
 public:
  using OnStep =
      std::function<void(const training::StepRecord&, const training::TrainSummary& so_far)>;

  // Evaluates the model after `step` steps and returns the metric --metric-for-best-model, which is
  // equal on all ranks. Returns nothing if a signal must end the training.
  using Evaluate = std::function<std::optional<double>(int64_t step)>;

  // Requires: the engine averages gradients over ranks (the default). `windows` and `settings`
  //   outlive this object.
  // Errors: those of fsdp::Checkpoints, and of ScheduleOptions::make.
  QaTrainer(fsdp::Unit<bert::QuestionAnswering> model, fsdp::Engine& engine,
            TrainingWindows& windows, const Settings& settings);
  // Loads the checkpoint that the options choose. Returns the number of steps that are done.
  int64_t resume();
  // Runs the remaining steps, and evaluates after the steps that --eval-strategy selects. Calls
  // `on_step` after each step, on every rank. Returns false if a signal ended the training early.
  // Requires: resume() was called.
  bool train(const OnStep& on_step, const Evaluate& evaluate);
  // Loads the best evaluated model, if --load-best-model-at-end is given. Collective.
  void load_best() { best_.load(state_); }
  // Sets the planned time of a step, which all records then have.
  void set_predicted_ms(double ms) { predicted_ms_ = ms; }
  const fsdp::BestModel& best() const { return best_; }
  // Saves if a rank got a signal. Returns true if the run must stop. Collective.
  bool poll() { return checkpoints_.poll(); }
  const training::TrainSummary& summary() const { return summary_; }

 private:
  bool evaluate_if_due(int64_t step, const Evaluate& evaluate);
  double forward_backward(const Batch& batch, double weight);
  training::StepRecord train_step(int64_t step, fsdp::BatchTransfer<StepTensors>& inputs);

  fsdp::Unit<bert::QuestionAnswering> model_;
  fsdp::Engine& engine_;
  TrainingWindows& windows_;
  const TrainSettings& settings_;
  const fsdp::RunOptions& run_;
  const std::unique_ptr<fsdp::Optimizer> made_;
  fsdp::Optimizer& optimizer_;
  fsdp::LrSchedule schedule_;               // its factor depends only on the step
  std::optional<fsdp::LossScaler> scaler_;  // with float16 parameters
  std::optional<double> predicted_ms_;
  training::TrainSummary summary_;
  fsdp::BestModel best_;
  fsdp::TrainingState state_;
  fsdp::Checkpoints checkpoints_;
};

}  // namespace bert_qa
