// Ema::State: the averages of an engine's weights and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_parts.h"
#include "fsdp/ema.h"
#include "kernels/count_steps.h"
#include "runtime/buffer.h"

namespace fsdp {

struct Ema::State {
  State(Engine& owner, EmaOptions from);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The average of a trainable segment, laid out as the slice of its main shard.
  struct Averaged {
    int unit = 0;
    int segment = 0;  // index in the unit's layout
    Buffer values;    // fp32
  };
  struct AveragedBuffer {
    std::string fqn;
    at::Tensor buffer;   // the model's
    at::Tensor average;  // float32, contiguous, on the buffer's device
  };

  void update(const StepReport& report);
  // Exchanges weights and averages. `averaged` is true if the weights are averages afterwards.
  void exchange(bool averaged);
  // Makes averages of segments that became trainable. They begin with the weights.
  void follow_trained();
  int64_t updates() const;
  void set_updates(int64_t updates);
  // Returns the average of a segment, or null.
  float* average_of(int unit, int segment) const;

  const std::shared_ptr<EngineParts> engine_held;
  EngineParts& engine;
  const EmaOptions options;
  const TrainingPlace place;
  std::vector<AveragedBuffer> buffers;

 private:
  void allocate(int64_t bytes, Buffer& to);
  void add_buffers();
  void exchange(float* weights, float* averages, int64_t numel);

  // The bytes that the engine counts for this object.
  struct CountedBytes {
    ~CountedBytes();
    EngineParts& engine;
    int64_t bytes = 0;
  };
  CountedBytes counted_{engine};
  std::vector<Averaged> segments_;
  Buffer counter_;   // a kernels::StepCount, the number of updates
  Buffer exchange_;  // room for an exchange
};

struct EmaAccess {
  static Ema::State& state(Ema& ema) { return *ema.state_; }
};
inline Ema::State& state_of(Ema& ema) { return EmaAccess::state(ema); }

}  // namespace fsdp
