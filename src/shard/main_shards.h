// This rank's fp32 slices of a unit: what is optimised, loaded and saved. On the device, or on the
// host ([Note: main state on the host] in shard_context.h).
//
// One slice a segment, and for whoever asks views of them parameter by parameter. Who writes them,
// and what tells the unit when it looks next (at the begin of a forward or backward, or Gathered):
//
//   fsdp::AdamW, SGD      through data(): they call mark_changed
//   Gathered's write-back through data(): it calls mark_changed
//   torch::optim, users   through views: their version counter, or the content (see the Note)
//   load_weights          through data(): it calls mark_changed
//   forwards              where parameters are seated on the slices themselves (one rank, DDP, in
//                         fp32): keep_writes
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cast_pack.h"
#include "shard/unit_context.h"

namespace fsdp {

// Not thread-safe: the engine's mutex covers it.
class MainShards {
 public:
  // `slices[i]` holds slice_numel fp32 of segment i; already counted as held by the ledger.
  MainShards(const UnitContext& unit, std::vector<Buffer> slices);
  ~MainShards();
  MainShards(const MainShards&) = delete;
  MainShards& operator=(const MainShards&) = delete;

  float* data(int segment) const { return slices_[segment].data; }
  int64_t bytes(int segment) const;
  // What this rank holds of a parameter; offsets are the slice's.
  const Interval& local(int parameter) const { return local_[parameter]; }

  // Moves a slice's values to `data` inside of `memory`, which then keeps them.
  // Requires: views() was not called; main shards are on the device.
  void relocate(int segment, std::shared_ptr<const MeshBuffer> memory, void* data);

  // What uploads and gathers make of main shards, in the segments' dtypes; done when the gather
  // stream has passed it. A place is where a segment's piece under `placement` is to lie.
  // Collective where there are moves. Requires: main shards are cut further, or on the host.
  void all_gather(const std::vector<AxisCollective>& collectives, Placement placement,
                  const std::vector<std::byte*>& places) const;
  // Whoever has written main shards on this rank alone: on those that hold the same slices, too.
  // Collective where there are such.
  void share_slices();
  // Whole fp32 values, segment by segment, padded; collective where main shards are cut. Compute
  // waits.
  void copy_whole(std::vector<Buffer>& whole) const;
  // The same of other fp32 that is cut as main shards are and lies where they do: an optimizer's
  // moments. `slices` by segment, null, and then so on every rank, where there is nothing.
  void copy_whole(std::span<float* const> slices, std::vector<Buffer>& whole) const;

  // Rises with every change that is known of.
  int64_t version(int segment) const;
  // Whoever wrote through data() says so.
  void mark_changed();
  // What was written through parameters that are seated on the slices is no change for a graph that
  // was made after it.
  void keep_writes();
  // Whether anything has changed since the last call. Where only the content tells, the host waits
  // for compute; for many units once, if issue_digests() was called for each and then compute was
  // synchronized. False: of this unit there is nothing to wait for.
  bool issue_digests();
  bool sync_changes();

  // Per-parameter views, for torch::optim and for loading; empty ones, too. Each shares its slice's
  // version counter and memory, also when the engine is gone.
  const std::vector<at::Tensor>& views();
  bool has_views() const { return !views_.empty(); }
  // Views that were taken to load or print values and let go since: they need no digest a forward.
  void forget_unused_views();
  // `.grad` of a view; users and plain optimizers read, replace and clear it.
  at::Tensor& gradient_of(int parameter) const { return views_[parameter].mutable_grad(); }
  void set_trainable(int segment);

 private:
  struct Slice {
    std::shared_ptr<const MeshBuffer> memory;  // shared with whoever holds a view
    float* data = nullptr;
    at::Tensor tensor;         // the same memory; its version counter tells of changes
    int64_t seen_version = 0;  // of tensor, when last looked at
  };
  // [Note: changes without a version]
  // Optimizers change main shards through views, whose version counter is the slice's. But some
  // (torch::optim::SGD) write through Tensor::data(), which has a counter of its own: once views
  // are handed out, only the content tells.
  // Returns the segments whose content differs from when it was last looked at.
  std::vector<int> look_at_contents();
  void copy(int segment, const float* from, void* to) const;

  const UnitContext& unit_;
  std::vector<Slice> slices_;
  std::vector<Interval> local_;  // by parameter
  std::vector<at::Tensor> views_;
  // Once views are handed out. By segment: pinned, so that the host reads them without a copy.
  Buffer digests_;
  Buffer digest_parts_;
  bool digests_issued_ = false;     // and read by the next sync_changes
  std::vector<uint64_t> contents_;  // the digests, when last looked at
};

}  // namespace fsdp
