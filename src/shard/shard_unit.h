// One unit's bytes: its main shards, the parameters seated on whole memory, and its gradients on
// the way from autograd to the main gradient. Each is a part of its own; here is what concerns more
// than one of them.
//
//   MainShards      fp32 slices: optimised, loaded, saved
//   UnitParameters  unshard, wait_for_unshard, reshard
//   UnitGradients   open, capture, reduce or keep; with them the main gradients
//
// What is gathered, scattered or summed between ranks is what the unit's moves say. Not
// thread-safe: the engine's mutex covers it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "shard/unit_gradients.h"
#include "shard/unit_parameters.h"

namespace fsdp {

// fp32 elements of one segment that this rank optimises. `grad` is null without a gradient.
struct MainSegment {
  int segment = 0;  // of the unit's layout
  float* param = nullptr;
  float* grad = nullptr;
  void* resident_copy =
      nullptr;  // in copy_dtype, to be written by whoever changes param; may be null
  DType copy_dtype = DType::kFloat32;
  int64_t numel = 0;
};

class ShardUnit {
 public:
  // `main` holds this rank's fp32 slice of each segment of the unit's layout; `parameters` are
  // bound to the unit's storages for good. The unit's owner is told of operators on its shards
  // (touch_trap.h), and with `watches_parameters` (a unit by policy) of those on its parameters.
  // Requires: no parameter has a gradient.
  ShardUnit(UnitContext unit, std::vector<at::Tensor> parameters, std::vector<Buffer> main,
            bool watches_parameters = false);

  const std::string& fqn() const { return context_.fqn; }
  const ShardLayout& layout() const { return context_.layout; }
  const UnitCollectives& collectives() const { return context_.collectives; }
  // The module's tensors.
  const std::vector<at::Tensor>& tensors() const { return parameters_.tensors(); }
  const MainShards& main() const { return main_; }
  UnitParameters& parameters() { return parameters_; }
  const UnitParameters& parameters() const { return parameters_; }
  UnitGradients& gradients() { return gradients_; }
  const UnitGradients& gradients() const { return gradients_; }

  UnitSizes sizes() const;

  // The optimizer's view; segments with trainable parameters only.
  // Errors: StateError where a failed backward has mixed gradients.
  std::vector<MainSegment> main_segments();
  // Per-parameter views of main shards, with gradients if there are any, for torch::optim and for
  // loading. While anybody else holds one of them, gradients are handed out and taken back through
  // `.grad` as well.
  const std::vector<at::Tensor>& local_views();

  // Change of the main shards since the last call: bumps parameters' versions and makes resident
  // copies anew. At a forward (`reseats`) seated parameters are given back, so that they are
  // gathered anew: alike on all ranks, whatever each rank's shard looks like, hence also where
  // nothing is known of a change but somebody may have made one.
  // The host may wait for compute; see MainShards::issue_digests.
  void sync_changes(bool rebinds);
  bool issue_digests() { return main_.issue_digests(); }
  // Whoever wrote the main shards through raw pointers says so; `copies_written`: with resident
  // copies.
  void mark_changed(bool copies_written);

  // A parameter that was frozen when the engine was built is to be trained: from now on its segment
  // has gradients. Requires: no gradients on their way. Errors: StateError.
  void unfreeze(int parameter);

 private:
  UnitContext context_;
  MainShards main_;
  UnitParameters parameters_;
  UnitGradients gradients_;
};

}  // namespace fsdp
