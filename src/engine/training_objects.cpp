#include "engine/training_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse_second_scaler() {
  throw StateError({.what = "the engine has a LossScaler already",
                    .where = "fsdp::LossScaler",
                    .hint = "use one LossScaler per engine, or destroy the first one"});
}

[[noreturn]] void refuse_shared(const std::string& parameter, const std::string& first,
                                const std::string& second) {
  throw StateError({.what = fmt::format("parameter '{}' would have two optimizers: {} and {}",
                                        parameter, first, second),
                    .where = "construction of the second optimizer",
                    .cause = "both would update this parameter in every step",
                    .hint = "choose disjoint parameters (AdamWOptions::parameters, fsdp::under), "
                            "or destroy the first optimizer before you make the second; to give "
                            "some parameters other settings, use ParameterGroup"});
}

}  // namespace

std::vector<std::string> TrainingObjects::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  return names;
}

std::vector<std::string> TrainingObjects::untrained(
    const std::vector<std::string>& parameters) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result;
  std::ranges::copy_if(parameters, std::back_inserter(result), [&](const std::string& fqn) {
    return std::ranges::none_of(entries_, [&](const Entry& entry) {
      return std::ranges::binary_search(entry.parameters, fqn);
    });
  });
  return result;
}

std::vector<std::string> TrainingObjects::without(
    const std::vector<const TrainingPlace*>& places) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (std::ranges::find(places, entry.place) == places.end()) names.push_back(entry.name);
  }
  return names;
}

void TrainingObjects::require_not_averaged(std::string_view call) const {
  if (!is_averaged_) return;
  throw StateError({.what = fmt::format("{} was called while an AveragedWeights exists", call),
                    .where = "fsdp::AveragedWeights",
                    .cause = "the weights of the engine are averages now",
                    .hint = "end the scope of the AveragedWeights first"});
}

TrainingPlace::TrainingPlace(std::shared_ptr<TrainingObjects> objects, TrainingKind kind,
                             std::string name, std::vector<std::string> parameters)
    : objects_(std::move(objects)) {
  std::ranges::sort(parameters);
  const std::lock_guard lock(objects_->mutex_);
  auto& entries = objects_->entries_;
  // The checks and the insertion use one lock, because two threads may make optimizers at the same
  // time.
  for (const TrainingObjects::Entry& entry : entries) {
    if (kind == TrainingKind::kLossScaler && entry.kind == kind) refuse_second_scaler();
    std::vector<std::string> shared;
    std::ranges::set_intersection(entry.parameters, parameters, std::back_inserter(shared));
    if (!shared.empty()) refuse_shared(shared.front(), entry.name, name);
  }
  entry_ = entries.insert(entries.end(), {kind, std::move(name), std::move(parameters), this});
}

TrainingPlace::~TrainingPlace() {
  const std::lock_guard lock(objects_->mutex_);
  objects_->entries_.erase(entry_);
}

}  // namespace fsdp
