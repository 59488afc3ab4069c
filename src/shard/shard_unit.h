// ShardUnit owns one unit's memory. It consists of three parts and handles what concerns more than
// one of them:
//
//   MainShards      fp32 slices: optimized, loaded, saved
//   UnitParameters  unshard, wait_for_unshard, reshard
//   UnitGradients   open, capture, reduce or keep; it has the main gradients
//
// The unit's collectives (UnitCollectives) say what is gathered, scattered or summed between ranks.
// Not thread-safe: the engine's mutex guards it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "shard/unit_gradients.h"
#include "shard/unit_parameters.h"

namespace fsdp {

// The fp32 elements of one segment that this rank optimizes.
struct MainSegment {
  int segment = 0;  // of the unit's layout
  float* param = nullptr;
  float* grad = nullptr;  // null without a gradient
  // A copy in copy_dtype, which a writer of `param` writes as well; null if there is none.
  void* resident_copy = nullptr;
  DType copy_dtype = DType::kFloat32;
  int64_t numel = 0;
};

class ShardUnit {
 public:
  // `main` holds this rank's fp32 slice of each segment of the unit's layout. `parameters` become
  // views of the unit's storages for life. The trap reports operators on the shards to the unit's
  // owner (touch_trap.h), with `watches_parameters` (a unit by policy) also those on parameters.
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

  // Returns the segments that an optimizer updates: those with trainable parameters.
  // Errors: StateError if a failed backward has mixed gradients.
  std::vector<MainSegment> main_segments();
  // Returns views of main shards by parameter, with gradients if there are any, for torch::optim
  // and for loading. While a caller holds one of them, `.grad` shows gradients and its changes are
  // adopted.
  const std::vector<at::Tensor>& local_views();

  // Follows changes of the main shards since the last call: bumps the parameters' versions and
  // updates resident copies. At a forward (`rebinds`) it also reshards the unit, so that it is
  // gathered again. All ranks do so alike, whether or not their own shard has changed: also if
  // views exist and a change is only possible. The host may block for compute; see
  // MainShards::issue_digests.
  void sync_changes(bool rebinds);
  bool issue_digests() { return main_.issue_digests(); }
  // Counts a change of the main shards that was written through raw pointers; `copies_written`:
  // resident copies were written as well.
  void mark_changed(bool copies_written);

  // Makes the segment of a parameter that was frozen at the engine's construction trainable: it
  // gets gradients from now on. Errors: StateError while gradients wait for a step.
  void unfreeze(int parameter);

 private:
  UnitContext context_;
  MainShards main_;
  UnitParameters parameters_;
  UnitGradients gradients_;
};

}  // namespace fsdp
