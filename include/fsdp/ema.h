// An exponential moving average (EMA) of the weights, on shards.
//
//   fsdp::Ema ema(engine, {.decay = 0.999});
//   …
//   ema.update(optimizer.step());          // after each step
//   …
//   {
//     const fsdp::AveragedWeights averaged(ema);
//     evaluate(model);                     // with the averages as weights
//     fsdp::save_weights(engine, "averages.safetensors");
//   }
//   state.add("ema", ema);                 // TrainingState: saved in checkpoints
//
// An average needs 4 bytes per element of a rank's main shards. An update sends no bytes and is one
// pass over memory.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/optim.h>

#include <cstdint>
#include <memory>

namespace fsdp {

struct EmaOptions {
  // An update sets average = decay · average + (1 - decay) · weight.
  double decay = 0.9999;
  // true: the decay of the update after n earlier updates is min(decay, (1 + n) / (10 + n)).
  bool warmup = true;
  // true: floating-point buffers, such as BatchNorm's running statistics, are averaged as well, on
  // each rank its own. The average of a buffer is float32.
  bool buffers = false;
};

// The average of an engine's trainable weights. It begins with the weights at construction; if a
// parameter is unfrozen later, its average begins with its weight at the next update. Frozen
// parameters have no average.
// Requires: the engine exists; after its destruction the functions throw. All functions are called
//   on every rank, between steps.
// Errors of the constructor: InvalidArgument if decay is not between 0 and 1, or if `buffers` is
//   set with Options::cpu_offload on a GPU. Errors of update: StateError while an AveragedWeights
//   exists.
class Ema {
 public:
  explicit Ema(Engine& engine, EmaOptions options = {});
  ~Ema();
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  // Updates the average, unless the optimizer skipped the step. The device decides this, so the
  // host does not wait. Without a report, the average is always updated.
  // Requires: `report` is that of the engine's last step.
  void update(const StepReport& report = {});
  int64_t updates() const;  // number of applied updates; waits for them

  struct State;

 private:
  friend struct EmaAccess;  // internal: src/optim/ema_state.h
  friend class AveragedWeights;
  std::unique_ptr<State> state_;
};

// Exchanges the weights of the engine with their averages during its life. The engine may run
// forwards and save weights. A backward through a graph from before the exchange throws.
// Errors of the constructor: StateError inside a forward or backward, or if another AveragedWeights
//   of the engine exists. During its life an optimizer's step and fsdp::save throw StateError.
class AveragedWeights {
 public:
  explicit AveragedWeights(Ema& ema);
  ~AveragedWeights() noexcept(false);
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  Ema::State& state_;
};

}  // namespace fsdp
