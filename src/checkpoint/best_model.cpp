#include "fsdp/best_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/training_state_parts.h"
#include "fsdp/error.h"
#include "fsdp/training_state.h"
#include "io/file_failure.h"
#include "io/found_checkpoints.h"

namespace fsdp {

TrainingState& TrainingState::add(std::string name, BestModel& best) {
  return add(name + ".metric", best.metric_)
      .add(name + ".step", best.step_)
      .add(name + ".evaluated_step", best.evaluated_step_)
      .add(name + ".without_improvement", best.without_improvement_);
}

BestModel::BestModel(BestModelOptions options) : options_(std::move(options)) {}

bool BestModel::update(TrainingState& state, int64_t step, double metric) {
  parts_of(state).mesh().agree("the metric of an evaluation", {fmt::format("{}", metric)});
  const EvaluationOptions& evaluation = options_.evaluation;
  const bool greater = evaluation.greater_is_better.value_or(true);
  const bool is_better =
      exists() ? (greater ? metric > metric_ : metric < metric_) : !std::isnan(metric);
  const bool improves =
      is_better && (!exists() || std::abs(metric - metric_) > evaluation.early_stopping_threshold);
  if (is_better) save(state, step);
  without_improvement_ = improves ? 0 : without_improvement_ + 1;
  evaluated_step_ = step;
  if (!is_better) return false;
  metric_ = metric;
  step_ = step;
  return true;
}

bool BestModel::stops() const {
  const int64_t patience = options_.evaluation.early_stopping_patience;
  return patience > 0 && without_improvement_ >= patience;
}

void BestModel::save(TrainingState& state, int64_t step) const {
  if (options_.folder.empty()) return;
  const Mesh& mesh = parts_of(state).mesh();
  const std::filesystem::path path = folder_of_step(options_.folder, step);
  run_or_throw_on_all_ranks(mesh, "saving the best model", [&] {
    if (mesh.rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(options_.folder, error);
    // A run that resumes may repeat the evaluation of a step.
    if (!error) std::filesystem::remove_all(path, error);
    if (error) cannot_create(path, error.value(), "cannot save the best model");
  });
  fsdp::save(state, path, {.step = step, .weights_only = true});
  if (mesh.rank() == 0) remove_older(step);
}

// Removes the models of earlier steps, unless a checkpoint may need them: the run resumes from the
// checkpoint and loads the model that was the best one then. Best effort: a model that stays is
// never loaded.
void BestModel::remove_older(int64_t step) const {
  std::vector<FoundCheckpoint> found;
  if (!options_.checkpoints.empty()) found = find_checkpoints(options_.checkpoints).of_run;
  const auto oldest = std::ranges::min_element(found, {}, &FoundCheckpoint::step);
  if (oldest != found.end() && oldest->step <= step) return;
  const std::filesystem::path kept = folder_of_step(options_.folder, step);
  for (const std::filesystem::path& path : folders_in(options_.folder)) {
    std::error_code ignored;
    if (is_checkpoint_folder(path) && path != kept) std::filesystem::remove_all(path, ignored);
  }
}

void BestModel::load(TrainingState& state) const {
  if (!exists() || options_.folder.empty()) return;
  fsdp::load(state, folder_of_step(options_.folder, step_), {.weights_only = true});
}

}  // namespace fsdp
