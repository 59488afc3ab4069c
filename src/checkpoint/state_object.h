// StateObject: one object of a training state. TrainingState::add makes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state_part.h"
#include "engine/engine_parts.h"
#include "io/checkpoint_manifest.h"

namespace fsdp {

// The order in which objects are restored. Schedulers set the rate of an optimizer, so optimizers
// precede them. Random states are last, so that restoring other objects draws no numbers from them.
enum class RestoreOrder : uint8_t { kEngine, kOptimizer, kScheduler, kScaler, kValue, kRandom };

using StateValues = std::map<std::string, ManifestValue>;

// An object's tensors and values. Saving calls values() and append_parts(). Loading calls check()
// and append_stored_parts(), fills the parts, and then calls restore().
class StateObject {
 public:
  StateObject(std::string name, RestoreOrder order) : name(std::move(name)), order(order) {}
  virtual ~StateObject() = default;
  StateObject(const StateObject&) = delete;
  StateObject& operator=(const StateObject&) = delete;

  // Returns the class of the object: "AdamW". A state can be loaded only into objects of the same
  // class.
  virtual std::string kind() const = 0;
  // Returns the engine to which the object belongs, or null.
  virtual EngineParts* engine() const { return nullptr; }
  // Appends the TrainingPlace (the entry in the engine's TrainingObjects) of this object and of
  // each object inside it.
  virtual void append_places(std::vector<const TrainingPlace*>& places) const {
    static_cast<void>(places);
  }
  // Prepares the object for the calls below: an optimizer makes the moments that it lacks. Throws
  // StateError during a forward or backward. Collective.
  virtual void prepare() {}
  // Throws StateError if the object cannot be saved now.
  virtual void require_saveable() const {}

  // Returns the object's values, which are equal on all ranks and are saved once.
  virtual StateValues values() const { return {}; }
  // Appends this rank's parts for saving. May be collective. The parts are valid until the next
  // call of this function or of append_stored_parts.
  virtual void append_parts(std::vector<StatePart>& parts) { static_cast<void>(parts); }

  // Throws IoError kCorruptData if the stored object does not fit this object, and appends notes
  // about differences that are allowed. Changes nothing.
  virtual void check(const CheckpointManifest& manifest, const ManifestObject& stored,
                     std::vector<std::string>& notes) const;
  // Appends the parts that this rank must fill with values of the checkpoint.
  virtual void append_stored_parts(const CheckpointManifest& manifest,
                                   std::vector<StatePart>& parts) {
    static_cast<void>(manifest);
    append_parts(parts);
  }
  // Sets the object's values to the stored ones, after the parts of all objects were filled on all
  // ranks.
  virtual void restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
    static_cast<void>(manifest), static_cast<void>(stored);
  }

  const std::string name;  // the object's name in the training state: "optimizer"
  const RestoreOrder order;
};

}  // namespace fsdp
