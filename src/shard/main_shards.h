// MainShards holds this rank's fp32 slices of a unit, one a segment: the values that are optimized,
// loaded and saved. They are on the device or on the host ([Note: main state on the host] in
// main_place.h).
//
// The unit looks for changes at the begin of a forward or backward and in Gathered. The writers,
// and how a change is noticed:
//
//   fsdp::AdamW, SGD       write through data() and call mark_changed
//   Gathered's write-back  writes through data() and calls mark_changed
//   load_weights           writes through data() and calls mark_changed
//   torch::optim, users    write through views: their version counter changes, or only the content
//                          ([Note: changes without a version])
//   forwards               write parameters that are bound to the slices themselves (one rank, DDP,
//                          in fp32): keep_writes
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cast_pack.h"
#include "shard/unit_context.h"

namespace fsdp {

// Not thread-safe: the engine's mutex guards it.
class MainShards {
 public:
  // `slices[i]` holds slice_numel fp32 elements of segment i; the ledger counts it as held already.
  MainShards(const UnitContext& unit, std::vector<Buffer> slices);
  ~MainShards();
  MainShards(const MainShards&) = delete;
  MainShards& operator=(const MainShards&) = delete;

  float* data(int segment) const { return slices_[segment].data; }
  int64_t bytes(int segment) const;
  // Returns this rank's run of a parameter; offsets are in the slice.
  const Interval& local(int parameter) const { return local_[parameter]; }

  // Copies a slice's values to `data`, inside `memory`, which holds the slice from then on.
  // Requires: views() was not called; main shards are on the device.
  void relocate(int segment, std::shared_ptr<const MeshBuffer> memory, void* data);

  // Uploads and gathers main shards, in the segments' dtypes, on the gather stream. places[i] is
  // the address of segment i's piece under `placement`. Collective if `collectives` is not empty.
  // Requires: main shards are cut further than `placement`, or on the host.
  void all_gather(const std::vector<AxisCollective>& collectives, Placement placement,
                  const std::vector<std::byte*>& places) const;
  // Broadcasts the first group's slices to the other groups, after each rank wrote its own main
  // shards. Collective if main shards are sharded within groups, else without effect.
  void share_slices();
  // Copies whole fp32 values to `whole`, by segment, padded. Compute waits for them. Collective if
  // main shards are sharded.
  void copy_whole(std::vector<Buffer>& whole) const;
  // Does the same for other fp32 values that are sharded and placed as main shards: an optimizer's
  // moments. `slices` is by segment; null, on every rank alike, for a segment without values.
  void copy_whole(std::span<float* const> slices, std::vector<Buffer>& whole) const;

  // Returns a number that rises with every known change.
  int64_t version(int segment) const;
  // Counts a change that was written through data().
  void mark_changed();
  // Notes what was written through parameters that are bound to the slices. It is no change for a
  // graph that was made after it.
  void keep_writes();
  // Issues digests of the content on MainPlace::stream(), if there are views. Returns false if
  // there is nothing to wait for. A caller with several units issues them all, synchronizes the
  // stream once and then calls sync_changes.
  bool issue_digests();
  // Returns true if anything has changed since the last call. If there are views and no digests
  // were issued, it issues them and blocks until they are computed.
  bool sync_changes();

  // Returns views by parameter, also of empty ones, for torch::optim and for loading. Each shares
  // its slice's version counter, and its memory, also after the engine is gone.
  const std::vector<at::Tensor>& views();
  bool has_views() const { return !views_.empty(); }
  // Drops the views if there is no other holder left, as after loading or printing values: then
  // forwards need no digests.
  void forget_unused_views();
  // Returns the `.grad` of a view. Users and LibTorch's optimizers read, replace and clear it.
  at::Tensor& gradient_of(int parameter) const { return views_[parameter].mutable_grad(); }
  void set_trainable(int segment);

 private:
  struct Slice {
    std::shared_ptr<const MeshBuffer> memory;  // shared with holders of views
    float* data = nullptr;
    at::Tensor tensor;         // the same memory; its version counter counts changes
    int64_t seen_version = 0;  // of tensor, at the last sync_changes
  };
  // [Note: changes without a version]
  // Optimizers change main shards through views, whose version counter is the slice's. But some
  // (torch::optim::SGD) write through Tensor::data(), which has a version counter of its own. So
  // once views exist, changes are found by the content's digest.
  // Returns the segments whose content has changed since the last call.
  std::vector<int> look_at_contents();
  void copy(int segment, const float* from, void* to) const;

  const UnitContext& unit_;
  std::vector<Slice> slices_;
  std::vector<Interval> local_;  // by parameter
  std::vector<at::Tensor> views_;
  // The digests by segment, once there are views; pinned, so that the host reads them without a
  // copy.
  Buffer digests_;
  Buffer digest_parts_;
  bool digests_issued_ = false;     // the next sync_changes reads them
  std::vector<uint64_t> contents_;  // the digests at the last look
};

}  // namespace fsdp
