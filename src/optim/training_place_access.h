// Access to the entries of schedulers and loss scalers in TrainingObjects, for checkpoints.
#pragma once

#include <vector>

#include "engine/training_objects.h"
#include "fsdp/loss_scaler.h"
#include "fsdp/lr_scheduler.h"
#include "optim/optimizer_state.h"

namespace fsdp {

struct TrainingPlaceAccess {
  static const TrainingPlace& place(const LRScheduler& scheduler) { return *scheduler.place_; }
  static const TrainingPlace& place(const ReduceLROnPlateau& scheduler) {
    return *scheduler.place_;
  }
  static const TrainingPlace& place(const LossScaler& scaler) { return *scaler.place_; }

  template <class Scheduler>
  static Optimizer& optimizer(const Scheduler& scheduler) {
    return scheduler.optimizer_;
  }
  template <class Scheduler>
  static EngineParts& engine(const Scheduler& scheduler) {
    return state_of(scheduler.optimizer_).engine;
  }
  // Returns the engine of the loss scaler, or null if the engine was destroyed.
  static EngineParts* engine(const LossScaler& scaler) { return scaler.engine_.lock().get(); }

  static void append_places(const ReduceLROnPlateau& scheduler,
                            std::vector<const TrainingPlace*>& places) {
    places.push_back(scheduler.place_.get());
  }
  // Appends the entries of the scheduler and of the schedulers inside it.
  static void append_places(const LRScheduler& scheduler,
                            std::vector<const TrainingPlace*>& places) {
    places.push_back(scheduler.place_.get());
    for (const LRScheduler* inner : scheduler.inner()) append_places(*inner, places);
  }
};

}  // namespace fsdp
