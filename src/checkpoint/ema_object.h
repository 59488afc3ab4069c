// EmaObject: an average of weights as a part of a training state.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/state_object.h"
#include "optim/ema_state.h"

namespace fsdp {

// Its tensors are NAME/average/FQN (F32, sharded as the parameter) and, if buffers are averaged,
// NAME/buffer_by_rank/FQN (F32, one row per rank). Its values are the options and the number of
// updates.
class EmaObject final : public StateObject {
 public:
  EmaObject(std::string name, Ema& ema)
      : StateObject(std::move(name), RestoreOrder::kOptimizer), state_(state_of(ema)) {}

  std::string kind() const override { return "Ema"; }
  EngineParts* engine() const override { return &state_.engine; }
  void append_places(std::vector<const TrainingPlace*>& places) const override {
    places.push_back(&state_.place);
  }
  void prepare() override;
  StateValues values() const override;
  void append_parts(std::vector<StatePart>& parts) override;
  void append_stored_parts(const CheckpointManifest& manifest,
                           std::vector<StatePart>& parts) override;
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  void append_averages(std::vector<StatePart>& parts) const;
  StatePart part_of_buffer(size_t buffer, int64_t rows) const;

  Ema::State& state_;
  std::vector<at::Tensor> host_;  // the averages of buffers during a save or load
};

}  // namespace fsdp
