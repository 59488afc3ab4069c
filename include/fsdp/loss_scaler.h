// Loss scaling for float16: gradients that would round to zero in forward's type are kept by
// multiplying the loss, and divided again where they leave autograd, before they are reduced.
//
//   fsdp::LossScaler scaler(engine);
//   scaler.scale(loss).backward();
//   optimizer.clip_grad_norm(1.0);                       // gradients are unscaled already
//   scaler.update(optimizer.step());
//   optimizer.zero_grad();
//
// The rules are those of PyTorch's GradScaler: an overflow halves the scale and its step is
// skipped, on all ranks alike; after growth_interval steps without one it doubles. Growth stops
// where the grown scale is no finite float32: it stays, and an interval begins anew.
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
  // What a run that goes on needs to know.
  struct State {
    double scale = 0;
    int64_t growth_tracker = 0;  // steps since the last overflow or growth
    bool operator==(const State&) const = default;
  };

  // Requires: one scaler an engine; equal options on every rank (compared with the next
  //   collective).
  // Errors: InvalidArgument for options that PyTorch refuses, or a scale that is not finite and
  //   positive; StateError if the engine has a scaler.
  explicit LossScaler(Engine& engine, LossScalerOptions options = {});
  // The engine's gradients are taken as they come again.
  ~LossScaler();
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  // float32(loss) · scale, for backward. The backward has to run before the next update.
  at::Tensor scale(const at::Tensor& loss) const;
  // After each step: waits for its report, as skipped() does, and sets the scale of the next. Steps
  // that are skipped before the first one that is not are a warning (MeshOptions::on_event): the
  // scale is being found.
  // Errors: InvalidArgument for a step of an optimizer with skip_nonfinite = false, and where
  //   gradients overflow at the least scale there is: the state stays as it was.
  void update(const StepReport& report);
  // The same after the steps of several optimizers: one that was skipped halves the scale for all.
  //   scaler.update({generator.step(), discriminator.step()});
  void update(std::initializer_list<StepReport> reports);

  double scale() const { return state_.scale; }
  State state() const { return state_; }
  // Errors: as the constructor.
  void load(const State& state);

 private:
  void apply();

  void warn_of_search(double next) const;

  const LossScalerOptions options_;
  State state_;
  bool is_found_ = false;  // a step was applied with a scale, or one was loaded
  const std::weak_ptr<EngineParts> engine_;
  const std::shared_ptr<const TrainingPlace> place_;
};

}  // namespace fsdp
