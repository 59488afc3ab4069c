// Keeps the best model of a training, and decides when to stop early.
//
//   fsdp::BestModel best({.evaluation = run.evaluation, .folder = "out/best"});
//   fsdp::TrainingState state(engine);
//   state.add("optimizer", optimizer).add("best", best);
//   …
//   if (run.evaluation.is_due(step, ends_epoch) && !best.is_evaluated(step)) {
//     best.update(state, step, accuracy);
//   }
//   if (best.stops()) break;
//   …
//   best.load(state);  // after the last step
#pragma once

#include <fsdp/training_options.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

class TrainingState;

struct BestModelOptions {
  EvaluationOptions evaluation{};  // resolve() was called
  // The best weights and buffers are saved here: in a folder step-00001200 for each step that a
  // resumed run may need. Empty: they are not kept.
  std::filesystem::path folder{};
  std::filesystem::path checkpoints{};  // CheckpointOptions::folder
};

// The best evaluation so far. TrainingState::add makes it a part of the checkpoints. All ranks make
// the same calls with the same values.
class BestModel {
 public:
  explicit BestModel(BestModelOptions options);
  BestModel(const BestModel&) = delete;
  BestModel& operator=(const BestModel&) = delete;

  // Records the metric of an evaluation after `step` steps. If it is better than all earlier ones,
  // saves the weights and buffers of `state`, removes older ones, and returns true. NaN is never
  // better. Early stopping counts an evaluation whose metric is not better by more than
  // early_stopping_threshold, as Hugging Face's EarlyStoppingCallback does. Collective.
  // Errors: those of save; CommError if the ranks have different metrics.
  bool update(TrainingState& state, int64_t step, double metric);
  // Returns true if early_stopping_patience evaluations in a row were no improvement.
  bool stops() const;
  // Returns true if this step was evaluated already: a run that resumes need not repeat it.
  bool is_evaluated(int64_t step) const { return evaluated_step_ == step; }
  // Loads the best weights and buffers. Does nothing if there was no evaluation or no folder.
  // Collective. Errors: those of load.
  void load(TrainingState& state) const;

  bool exists() const { return step_ >= 0; }  // an evaluation had a metric
  double metric() const { return metric_; }
  int64_t step() const { return step_; }

 private:
  friend class TrainingState;
  void save(TrainingState& state, int64_t step) const;
  void remove_older(int64_t step) const;

  const BestModelOptions options_;
  double metric_ = 0;
  int64_t step_ = -1;            // of the best evaluation; -1: none
  int64_t evaluated_step_ = -1;  // of the last evaluation
  int64_t without_improvement_ = 0;
};

}  // namespace fsdp
