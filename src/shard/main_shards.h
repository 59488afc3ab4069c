// MainShards holds this rank's fp32 slices of a unit, one per segment. The optimizer updates these
// values, and weights are loaded into and saved from them. Main shards are on the device or on the
// host ([Note: main state on the host] in main_place.h).
//
// The unit checks for changes at the begin of a forward or backward and in fsdp::Gathered. It
// notices the changes of all code that writes main shards:
// - fsdp::AdamW, fsdp::SGD, load_weights, fsdp::load and the write-back of fsdp::Gathered write
//   through data() and call mark_changed.
// - torch::optim and users write through views. Such a write changes the version counter of the
//   view, or only the content ([Note: changes without a version]).
// - On one rank and with DDP, in fp32, the parameters are bound to the slices themselves, so a
//   forward can write main shards. The unit then calls keep_writes.
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
  // `slices[i]` holds slice_numel fp32 elements of segment i. The ledger has already counted these
  // bytes.
  MainShards(const UnitContext& unit, std::vector<Buffer> slices);
  ~MainShards();
  MainShards(const MainShards&) = delete;
  MainShards& operator=(const MainShards&) = delete;

  float* data(int segment) const { return slices_[segment].data; }
  int64_t bytes(int segment) const;
  // Returns the contiguous part of a parameter that this rank's slice contains. The offset of the
  // interval is relative to the slice.
  const Interval& local(int parameter) const { return local_[parameter]; }

  // Copies a slice's values to `data`, an address inside `memory`. From then on `memory` holds the
  // slice. The main shards must be on the device, and views() must not have been called.
  // Writes to other parts of `memory` may then write the slice, too.
  void relocate(int segment, std::shared_ptr<const MeshBuffer> memory, void* data);

  // Returns true if relocate() was called.
  bool are_relocated() const { return are_relocated_; }

  // Uploads and gathers main shards on the gather stream, in the segments' dtypes. places[i] is the
  // address of segment i's piece under `placement`. Collective if `collectives` is not empty.
  // Requires: main shards are on the host, or are smaller pieces than those of `placement`.
  void all_gather(const std::vector<AxisCollective>& collectives, Placement placement,
                  const std::vector<std::byte*>& places) const;
  // Broadcasts the first group's slices to the other groups, after each rank has written its own
  // main shards. Collective if main shards are sharded within groups. Otherwise it does nothing.
  void share_slices();
  // Copies the whole fp32 values of the unit, not only this rank's slices, to `whole`, which has
  // one padded buffer per segment. The compute stream waits for the copies. Collective if main
  // shards are sharded.
  void copy_whole(std::vector<Buffer>& whole) const;
  // Copies other fp32 values in the way of copy_whole(whole), for example an optimizer's moments.
  // They must be sharded and placed as main shards. `slices` has this rank's slice of each segment.
  // An entry is null, on every rank, if the segment has no values.
  void copy_whole(std::span<float* const> slices, std::vector<Buffer>& whole) const;

  // Returns a number that increases with every change of the segment's slice that the engine has
  // noticed.
  int64_t version(int segment) const;
  // Counts a change that the caller has written through data().
  void mark_changed();
  // Accepts writes through parameters that are bound to the slices. Such a write does not count as
  // a change for a graph that was made after it.
  void keep_writes();
  // If views exist, issues the computation of digests of the slices' content on
  // MainPlace::stream(). Returns false if nothing was issued. A caller with several units first
  // calls this for all units, then synchronizes the stream once, and then calls sync_changes.
  bool issue_digests();
  // Returns true if a slice has changed since the last call. If views exist and issue_digests was
  // not called before, computes the digests and blocks until they are ready.
  bool sync_changes();

  // Returns one view per parameter, also for empty parameters, for torch::optim and for loading. A
  // view shares the version counter of its slice. It also shares the slice's memory, which stays
  // valid after the engine is destroyed.
  const std::vector<at::Tensor>& views();
  bool has_views() const { return !views_.empty(); }
  // Drops the views if no code outside this class holds one any more, for example after values were
  // loaded or printed. Without views, forwards need no digests.
  void forget_unused_views();
  // Returns the `.grad` of a view. Users and LibTorch's optimizers read, replace and clear it.
  at::Tensor& gradient_of(int parameter) const { return views_[parameter].mutable_grad(); }
  void set_trainable(int segment);

 private:
  struct Slice {
    std::shared_ptr<const MeshBuffer> memory;  // shared with holders of views
    float* data = nullptr;
    at::Tensor tensor;         // tensor over the same memory; its version counter counts changes
    int64_t seen_version = 0;  // version of `tensor` at the last sync_changes
  };
  // Makes `data`, an address in `memory`, the place of the segment's slice.
  void place(int segment, std::shared_ptr<const MeshBuffer> memory, void* data);
  // [Note: changes without a version] Optimizers change main shards through views. Usually this
  // increases the version counter of the slice. But some optimizers (torch::optim::SGD) write
  // through Tensor::data(), which has another version counter. So once views exist, changes are
  // found by a digest of the content.
  // Returns the segments whose content has changed since the last call.
  std::vector<int> look_at_contents();
  void copy(int segment, const float* from, void* to) const;

  const UnitContext& unit_;
  std::vector<Slice> slices_;
  std::vector<Interval> local_;  // by parameter
  std::vector<at::Tensor> views_;
  bool are_relocated_ = false;
  // The digests by segment, allocated when the first views exist. The memory is pinned, so that the
  // host reads it without a copy.
  Buffer digests_;
  Buffer digest_parts_;
  bool digests_issued_ = false;     // digests were issued but not read yet
  std::vector<uint64_t> contents_;  // the digests at the last comparison
};

}  // namespace fsdp
