// EngineObject: an engine as a part of a training state.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/state_object.h"

namespace fsdp {

// The tensors of an engine, by their names in the checkpoint:
//
//   NAME/weight/FQN          F32, sharded
//   NAME/buffer/FQN          a buffer, or a parameter that the engine ignores, with equal bytes on
//                            all ranks
//   NAME/buffer_by_rank/FQN  the same with different bytes: one row per rank
class EngineObject final : public StateObject {
 public:
  EngineObject(std::string name, EngineParts& engine);

  std::string kind() const override { return "Engine"; }
  EngineParts* engine() const override { return &engine_; }
  void prepare() override;
  void require_saveable() const override;
  // Collective if the model has buffers, because their hashes are compared over the ranks.
  void append_parts(std::vector<StatePart>& parts) override;
  void append_stored_parts(const CheckpointManifest& manifest,
                           std::vector<StatePart>& parts) override;
  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override;

 private:
  // A tensor that every rank holds whole.
  struct Whole {
    std::string fqn;
    std::vector<std::string> other_names;
    at::Tensor tensor;  // the model's
    at::Tensor host;    // its bytes on the host, contiguous
  };
  std::vector<Whole> whole_tensors() const;
  void append_weights(std::vector<StatePart>& parts) const;
  // Returns the StatePart for a tensor that every rank holds whole. `rows` is 0 if the tensor is
  // stored as NAME/buffer, and the number of rows if it is stored as NAME/buffer_by_rank.
  StatePart part_of_whole(const Whole& whole, int64_t rows) const;

  EngineParts& engine_;
  std::vector<Whole> whole_;  // of the last append_parts or append_stored_parts
};

}  // namespace fsdp
