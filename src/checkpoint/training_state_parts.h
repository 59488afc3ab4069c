// TrainingState::Parts: the objects of a training state, and the run to which its checkpoints
// belong.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/state_object.h"
#include "fsdp/training_state.h"

namespace fsdp {

// The run of a training state, and the state's position among the checkpoints of this run. Equal on
// all ranks.
struct Lineage {
  std::string run;            // 32 hexadecimal digits
  int64_t sequence = 0;       // number of the last checkpoint that was saved or loaded
  int64_t resumed_from = -1;  // step of the checkpoint that was loaded; -1: none
};

struct TrainingState::Parts {
  explicit Parts(Engine& engine);

  const Mesh& mesh() const { return engine.context->mesh; }
  bool has(const EngineParts& other) const;
  // Throws StateError if an optimizer, scheduler or scaler of an added engine was not added.
  void require_complete() const;
  // Appends this rank's parts of the objects that the options select, for saving.
  std::vector<StatePart> parts_to_save(const SaveStateOptions& options);
  // Returns the objects in the order in which they are restored.
  std::vector<StateObject*> in_restore_order() const;

  EngineParts& engine;  // the first one
  std::vector<std::unique_ptr<StateObject>> objects;
  int64_t step = 0;         // of the save in progress
  int64_t saved_bytes = 0;  // of the tensors of the last save that has begun, over all ranks
  Lineage lineage;
  // Make the names of temporary folders unique: `nonce` over processes, `attempts` in this process.
  std::string nonce;
  int64_t attempts = 0;
};

struct TrainingStateAccess {
  static TrainingState::Parts& parts(TrainingState& state) { return *state.parts_; }
};
inline TrainingState::Parts& parts_of(TrainingState& state) {
  return TrainingStateAccess::parts(state);
}

// Returns true if options with `weights_only` select the tensor: weights and buffers of engines.
bool is_of_model(const TrainingState::Parts& state, std::string_view tensor);

}  // namespace fsdp
