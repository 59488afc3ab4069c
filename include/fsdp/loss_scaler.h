// Loss scaling for float16. The loss is multiplied by the scale, so that small gradients do not
// round to zero in float16. The engine divides the gradients by the scale before it reduces them.
//
//   fsdp::LossScaler scaler(engine);
//   scaler.scale(loss).backward();
//   optimizer.clip_grad_norm(1.0);                       // gradients are unscaled already
//   scaler.update(optimizer.step());
//   optimizer.zero_grad();
//
// The rules are those of PyTorch's GradScaler. After an overflow the step is skipped on all ranks
// and the scale is halved. After growth_interval steps without an overflow the scale is doubled. If
// the doubled scale is not a finite float32, the scale is unchanged and a new interval begins.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/engine.h>
#include <fsdp/optim.h>

#include <cstdint>
#include <initializer_list>
#include <memory>

namespace fsdp {

class TrainingPlace;  // engine/training_objects.h

struct LossScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

class LossScaler {
 public:
  // The state of a LossScaler that a resumed run needs.
  struct State {
    double scale = 0;
    int64_t growth_tracker = 0;  // steps since the last overflow or growth
    bool operator==(const State&) const = default;
  };

  // Requires: equal options on every rank. The next collective compares the options of all ranks.
  // Errors: InvalidArgument for options that PyTorch refuses, and for a scale that is not finite
  //   and positive. StateError if the engine already has a scaler.
  explicit LossScaler(Engine& engine, LossScalerOptions options = {});
  // Makes the engine stop dividing gradients by the scale.
  ~LossScaler();
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  // Returns float32(loss) · scale, on which the caller runs backward.
  // Requires: this backward has run before the next update().
  at::Tensor scale(const at::Tensor& loss) const;
  // Waits for the report of a step, as skipped() does, and sets the next scale. Before the first
  // step that is applied, each skipped step also causes a warning (MeshOptions::on_event) that the
  // scale is still too large.
  // Errors: InvalidArgument if the optimizer has skip_nonfinite = false, or if gradients overflow
  //   at the smallest scale. The state is then unchanged.
  void update(const StepReport& report);
  // Sets the next scale after the steps of several optimizers. If any of the steps was skipped, the
  // common scale is halved.
  //   scaler.update({generator.step(), discriminator.step()});
  void update(std::initializer_list<StepReport> reports);

  double scale() const { return state_.scale; }
  State state() const { return state_; }
  // Errors: the same as those of the constructor.
  void load(const State& state);

 private:
  friend struct TrainingPlaceAccess;  // internal: src/optim/training_place_access.h
  void apply();

  void warn_of_search(double next) const;

  const LossScalerOptions options_;
  State state_;
  bool is_found_ = false;  // true once a step was applied or a state was loaded
  const std::weak_ptr<EngineParts> engine_;
  const std::shared_ptr<const TrainingPlace> place_;
};

}  // namespace fsdp
