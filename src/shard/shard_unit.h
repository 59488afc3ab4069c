// ShardUnit owns one unit's memory. It consists of three parts and does the work that concerns more
// than one of them:
// - MainShards holds the fp32 slices, which are optimized, loaded and saved.
// - UnitParameters unshards and reshards the parameters.
// - UnitGradients captures the gradients and reduces or keeps them. It owns the main gradients.
//
// The unit's collectives (UnitCollectives) define which data are gathered, scattered or summed
// between ranks. Not thread-safe: the engine's mutex guards it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "shard/unit_gradients.h"
#include "shard/unit_parameters.h"

namespace fsdp {

// The fp32 elements of one segment that this rank's optimizer updates.
struct MainSegment {
  int segment = 0;  // index in the unit's layout
  float* param = nullptr;
  float* grad = nullptr;  // null if there is no gradient
  // A copy of `param` in copy_dtype, or null. Code that writes `param` must write the copy as well.
  void* resident_copy = nullptr;
  DType copy_dtype = DType::kFloat32;
  int64_t numel = 0;
};

class ShardUnit {
 public:
  // `main` holds this rank's fp32 slice of each segment of the unit's layout. `parameters` become
  // views of the unit's storages permanently. The trap reports operators on the shards to the
  // unit's owner (touch_trap.h). With `watches_parameters`, which a unit chosen by policy needs,
  // the trap also reports operators on the parameters. No parameter may have a gradient.
  ShardUnit(UnitContext unit, std::vector<at::Tensor> parameters, std::vector<Buffer> main,
            bool watches_parameters = false);

  const std::string& fqn() const { return context_.fqn; }
  const ShardLayout& layout() const { return context_.layout; }
  const UnitCollectives& collectives() const { return context_.collectives; }
  // Returns the module's tensors.
  const std::vector<at::Tensor>& tensors() const { return parameters_.tensors(); }
  const MainShards& main() const { return main_; }
  UnitParameters& parameters() { return parameters_; }
  const UnitParameters& parameters() const { return parameters_; }
  UnitGradients& gradients() { return gradients_; }
  const UnitGradients& gradients() const { return gradients_; }

  UnitSizes sizes() const;

  // Returns the segments that an optimizer updates, which are those with trainable parameters.
  // Errors: StateError if gradients also contain a part of a failed backward.
  std::vector<MainSegment> main_segments();
  // Returns views of main shards by parameter, for torch::optim and for loading. The `.grad` of the
  // views is defined if gradients exist. While a caller holds a view, its `.grad` shows the
  // gradient, and changes of `.grad` are adopted.
  const std::vector<at::Tensor>& local_views();

  // Adopts changes of the main shards since the last call: increments the parameters' versions and
  // updates resident copies. At a forward (`rebinds`) it also reshards the unit, so that the unit
  // is gathered again. All ranks reshard alike, even if only another rank's shard has changed. They
  // also reshard if views exist, because then another rank's shard may have changed. The host may
  // block until the compute stream is done; see MainShards::issue_digests.
  void sync_changes(bool rebinds);
  bool issue_digests() { return main_.issue_digests(); }
  // Counts a change of the main shards that was written through raw pointers. `copies_written` is
  // true if the resident copies were written as well.
  void mark_changed(bool copies_written);
  // Returns true if code that does not wait for MainStateHold may write main shards: users write
  // views of main shards, and forwards write parameters in whose memory main shards are.
  bool main_has_other_writers() const {
    return main_.has_views() || main_.are_relocated() || parameters_.keeps_writes();
  }

  // Makes the segment of `parameter` trainable, so that the segment gets gradients from now on.
  // Requires: the parameter was frozen when the engine was constructed. Errors: StateError while
  // gradients wait for an optimizer step.
  void unfreeze(int parameter);

 private:
  UnitContext context_;
  MainShards main_;
  UnitParameters parameters_;
  UnitGradients gradients_;
};

}  // namespace fsdp
