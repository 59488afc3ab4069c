// OptimizerObject: an optimizer of fsdp as a part of a training state.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/state_object.h"
#include "optim/optimizer_state.h"

namespace fsdp {

// Its tensors are NAME/MOMENT/FQN (F32, sharded as the parameter). For a quantized moment they are
// NAME/MOMENT/FQN (U8, the codes) and NAME/MOMENT_absmax/FQN (F32, one value per block). Its values
// are lr, the number of applied steps, the options, the settings of groups ("group/NAME.lr"), and
// the number of updates of each parameter that it has trained ("updates" for most parameters,
// "updates/FQN" for a parameter with another number).
class OptimizerObject final : public StateObject {
 public:
  OptimizerObject(std::string name, Optimizer& optimizer);

  std::string kind() const override { return state_.name; }
  EngineParts* engine() const override { return &state_.engine; }
  void append_places(std::vector<const TrainingPlace*>& places) const override;
  void prepare() override;
  void require_saveable() const override;
  StateValues values() const override;
  void append_parts(std::vector<StatePart>& parts) override;
  void append_stored_parts(const CheckpointManifest& manifest,
                           std::vector<StatePart>& parts) override;
  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  void make_state_of_frozen(const CheckpointManifest& manifest);

  Optimizer& optimizer_;
  Optimizer::State& state_;
};

}  // namespace fsdp
