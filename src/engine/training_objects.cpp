#include "engine/training_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse_second(TrainingKind kind, const std::string& first,
                                const std::string& second) {
  if (kind == TrainingKind::kLossScaler) {
    throw StateError({.what = "the engine has a LossScaler already",
                      .where = "fsdp::LossScaler",
                      .hint = "one scaler an engine, while it lives"});
  }
  throw StateError(
      {.what = fmt::format("a second optimizer on one engine: {} beside {}", second, first),
       .where = fmt::format("fsdp::{}", second),
       .cause = "each of them would step all parameters of the engine",
       .hint = "destroy the first one before the second is made (a unique_ptr: reset() it); "
               "settings of some parameters alone go into ParameterGroup"});
}

}  // namespace

std::vector<std::string> TrainingObjects::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  return names;
}

TrainingPlace::TrainingPlace(std::shared_ptr<TrainingObjects> objects, TrainingKind kind,
                             std::string name)
    : objects_(std::move(objects)) {
  const std::lock_guard lock(objects_->mutex_);
  auto& entries = objects_->entries_;
  if (kind != TrainingKind::kScheduler) {
    const auto first = std::ranges::find(entries, kind, &TrainingObjects::Entry::kind);
    if (first != entries.end()) refuse_second(kind, first->name, name);
  }
  entry_ = entries.insert(entries.end(), {kind, std::move(name)});
}

TrainingPlace::~TrainingPlace() {
  const std::lock_guard lock(objects_->mutex_);
  objects_->entries_.erase(entry_);
}

}  // namespace fsdp
