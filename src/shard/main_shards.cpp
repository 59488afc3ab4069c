#include "shard/main_shards.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "kernels/digest.h"
#include "libtorch/torch_compat.h"
#include "shard/piece_gather.h"

namespace fsdp {

MainShards::MainShards(const UnitContext& unit, std::vector<Buffer> slices)
    : unit_(unit), slices_(slices.size()), local_(unit.layout.parameters().size()) {
  for (int i = 0; i < unit_.segments(); ++i) {
    auto memory = std::make_shared<const MeshBuffer>(unit_.shared.mesh, std::move(slices[i]));
    void* data = memory->buffer.data();
    place(i, std::move(memory), data);
    unit_.shared.main->ledger().take(MemoryCategory::kMainShards, bytes(i));
    for (const Interval& interval : unit_.layout.intervals(i, unit_.main_rank())) {
      local_[interval.parameter] = interval;
    }
  }
}

// Users may hold views of main shards after the engine is destroyed. The views keep the memory and
// the mesh alive (MeshBuffer). But the trap (touch_trap.h) must no longer report operators on them
// to the unit, which no longer exists.
MainShards::~MainShards() {
  for (int i = 0; i < unit_.segments(); ++i) {
    touch_trap::forget_owner(slices_[i].tensor);
    unit_.shared.main->ledger().give(MemoryCategory::kMainShards, bytes(i));
  }
}

int64_t MainShards::bytes(int segment) const {
  return unit_.segment(segment).slice_numel * size_of(DType::kFloat32);
}

void MainShards::relocate(int segment, std::shared_ptr<const MeshBuffer> memory, void* data) {
  are_relocated_ = true;
  copy(segment, slices_[segment].data, data);
  // The host waits until the copy is done, because the memory that it reads is freed below.
  unit_.shared.streams.compute->synchronize();
  place(segment, std::move(memory), data);
}

void MainShards::place(int segment, std::shared_ptr<const MeshBuffer> memory, void* data) {
  Slice& slice = slices_[segment];
  slice.data = static_cast<float*>(data);
  slice.tensor = torch_compat::wrap_watched(data, unit_.segment(segment).slice_numel,
                                            unit_.shared.main->torch_device(),
                                            unit_.watch(touch_trap::Holds::kMainShard), memory);
  slice.memory = std::move(memory);
  slice.seen_version = version(segment);
}

void MainShards::copy(int segment, const float* from, void* to) const {
  const kernels::CastRun run{from, to, unit_.segment(segment).slice_numel};
  kernels::cast_pack(*unit_.shared.streams.compute, {&run, 1});
}

void MainShards::all_gather(const std::vector<AxisCollective>& collectives, Placement placement,
                            const std::vector<std::byte*>& places) const {
  ShardContext& shared = unit_.shared;
  const ExposedTimer timer(shared.streams);
  Stream& stream = *shared.streams.gather;
  const ContextSpan span = shared.streams.span(*shared.streams.gather, "gather", unit_.fqn);
  PieceGather gather(unit_);
  // A gather can send only device memory. If slots are registered with NCCL, it can send only
  // registered memory. In both cases a main shard that does not qualify is first copied into the
  // slot.
  const bool gathers_in_place = shared.main->is_host() || shared.comms.has_windows();
  std::vector<kernels::CastRun> own_runs;
  for (int i = 0; i < unit_.segments(); ++i) {
    const DType dtype = unit_.segment(i).dtype;
    const Piece slice = unit_.piece(unit_.collectives.row.optimizer, i);
    const int64_t place_begin = unit_.piece(placement, i).begin;
    std::byte* own = places[i] + (slice.begin - place_begin) * size_of(dtype);
    // With a lower param_dtype the shard is cast into its position in the result, and the gather is
    // in place as well. In fp32 the gather reads the main shard itself. A resident copy may contain
    // the main shard (MainShards::relocate). In this case the shard is already in place.
    const bool is_there = own == static_cast<const void*>(data(i));
    const bool moves_own = !is_there && (gathers_in_place || dtype != DType::kFloat32);
    if (moves_own) own_runs.push_back({data(i), own, slice.numel, DType::kFloat32, dtype});
    gather.add(slice, dtype, moves_own ? static_cast<void*>(own) : data(i), places[i], place_begin);
  }
  // All segments are parts of one collective, so that ranks wait for each other only once.
  if (!own_runs.empty()) shared.main->send(own_runs, unit_.fqn);
  gather.issue(collectives, stream);
}

void MainShards::copy_whole(std::vector<Buffer>& whole) const {
  std::vector<float*> slices;
  for (const Slice& slice : slices_) slices.push_back(slice.data);
  copy_whole(slices, whole);
}

void MainShards::copy_whole(std::span<float* const> slices, std::vector<Buffer>& whole) const {
  ShardContext& shared = unit_.shared;
  whole.clear();
  PieceGather gather(unit_);
  std::vector<kernels::CastRun> own_runs;
  for (int i = 0; i < unit_.segments(); ++i) {
    whole.emplace_back();
    if (slices[i] == nullptr) continue;
    const SegmentLayout& layout = unit_.segment(i);
    whole.back() = shared.memory.allocate(layout.numel * size_of(DType::kFloat32));
    if (unit_.collectives.cuts_main()) {
      const Piece slice = unit_.piece(unit_.collectives.row.optimizer, i);
      auto* place = static_cast<std::byte*>(whole.back().data());
      void* own = slices[i];
      if (shared.main->is_host()) {
        own = place + slice.begin * size_of(DType::kFloat32);
        own_runs.push_back({slices[i], own, slice.numel});
      }
      gather.add(slice, DType::kFloat32, own, place, 0);
    } else if (layout.slice_numel > 0) {
      copy(i, slices[i], whole.back().data());
    }
  }
  if (!unit_.collectives.cuts_main()) return;
  // This function is called between passes. The compute stream may have written the slices since
  // the last pass began, but gathers wait for compute only when a pass begins. So this gather must
  // wait for compute explicitly.
  shared.streams.gather_after_compute();
  if (!own_runs.empty()) shared.main->send(own_runs, unit_.fqn);
  gather.issue(unit_.collectives.to_whole(), *shared.streams.gather);
  Event gathered(shared.streams.device);
  shared.streams.gather->record(gathered);
  shared.streams.compute->wait(gathered);  // wait 3
}

// Several ranks hold the same slice only if main shards are sharded within groups. (If all ranks
// hold whole main shards, UnitParameters::write_back uses the values of rank 0.)
void MainShards::share_slices() {
  ShardContext& shared = unit_.shared;
  if (unit_.collectives.row.optimizer != Placement::kShardGroup) return;
  std::vector<CollectivePart> parts;
  std::vector<Buffer> staged;  // on the device, if main shards are on the host
  for (int i = 0; i < unit_.segments(); ++i) {
    void* at = data(i);
    if (shared.main->is_host()) at = staged.emplace_back(shared.memory.allocate(bytes(i))).data();
    parts.push_back({at, at, unit_.segment(i).slice_numel, DType::kFloat32});
  }
  Stream& stream = *shared.streams.gather;
  // `staged` is freed on return, so the host blocks until the stream has finished with it.
  shared.streams.settle(stream, [&] {
    shared.streams.gather_after_compute();
    for (size_t i = 0; i < staged.size(); ++i) {
      stream.copy(staged[i].data(), data(static_cast<int>(i)), staged[i].bytes());
    }
    shared.comms.gather(Axis::kReplicate)
        .broadcast(parts, 0, unit_.next_tag(Operation::kBroadcast, unit_.layout.slice_numel()),
                   stream);
    for (size_t i = 0; i < staged.size(); ++i) {
      stream.copy(data(static_cast<int>(i)), staged[i].data(), staged[i].bytes());
    }
  });
}

int64_t MainShards::version(int segment) const {
  return torch_compat::version(slices_[segment].tensor);
}

void MainShards::mark_changed() {
  for (const Slice& slice : slices_) torch_compat::bump_version(slice.tensor);
}

// The version increases, so that resident copies are updated. The new version counts as seen, so
// the next sync_changes reports no change.
void MainShards::keep_writes() {
  mark_changed();
  for (int i = 0; i < unit_.segments(); ++i) slices_[i].seen_version = version(i);
  if (has_views()) look_at_contents();
}

bool MainShards::sync_changes() {
  if (has_views()) {
    // If a change shows only in the content and not in the version, the version is increased here,
    // because the owners of resident copies compare versions.
    for (const int segment : look_at_contents()) {
      torch_compat::bump_version(slices_[segment].tensor);
    }
  }
  bool changed = false;
  for (int i = 0; i < unit_.segments(); ++i) {
    Slice& slice = slices_[i];
    changed = changed || version(i) != slice.seen_version;
    slice.seen_version = version(i);
  }
  return changed;
}

bool MainShards::issue_digests() {
  if (!has_views() || slices_.empty()) return false;
  // A digest reads all main shards, which takes time, so digests are allocated and computed only
  // once views exist.
  constexpr int64_t kWord = sizeof(uint64_t);
  const auto segments = static_cast<int64_t>(slices_.size());
  if (!digests_) {
    digests_ = unit_.shared.streams.device.allocate(segments * kWord, MemoryKind::kPinned);
    digest_parts_ = unit_.shared.main->allocate_own(segments * kernels::kDigestParts * kWord);
    contents_.resize(slices_.size());
  }
  std::vector<kernels::DigestRun> runs;
  for (int i = 0; i < unit_.segments(); ++i) {
    runs.push_back({slices_[i].data, bytes(i), static_cast<uint64_t*>(digests_.data()) + i,
                    static_cast<uint64_t*>(digest_parts_.data()) + i * kernels::kDigestParts});
  }
  kernels::digest(unit_.shared.main->stream(), runs);
  digests_issued_ = true;
  return true;
}

std::vector<int> MainShards::look_at_contents() {
  // If digests were already issued, the caller has also synchronized the stream, once for all its
  // units.
  if (!digests_issued_) {
    if (!issue_digests()) return {};
    unit_.shared.main->stream().synchronize();
  }
  digests_issued_ = false;
  const auto* now = static_cast<const uint64_t*>(digests_.data());
  std::vector<int> changed;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (now[i] != contents_[i]) changed.push_back(i);
    contents_[i] = now[i];
  }
  return changed;
}

const std::vector<at::Tensor>& MainShards::views() {
  if (has_views()) return views_;
  unit_.shared.hold.wait();  // the caller may write through the views
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < local_.size(); ++i) {
    const int segment = unit_.layout.segment_of(static_cast<int>(i));
    // A view made by `narrow` shares the slice's version counter, so in-place changes are noticed.
    at::Tensor view = slices_[segment].tensor.narrow(0, local_[i].offset, local_[i].numel);
    view.set_requires_grad(unit_.segment(segment).trainable);
    if (unit_.shared.watches_shards) touch_trap::watch(view);
    views_.push_back(std::move(view));
  }
  look_at_contents();  // later changes are found by comparison with these digests
  return views_;
}

void MainShards::forget_unused_views() {
  if (!has_views()) return;
  std::vector<size_t> own(slices_.size(), 1);  // by slice: number of the engine's tensors on it
  for (size_t i = 0; i < views_.size(); ++i) {
    if (views_[i].use_count() > 1) return;
    ++own[unit_.layout.segment_of(static_cast<int>(i))];
  }
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (slices_[i].tensor.storage().use_count() > own[i]) return;  // a user's view of a view
  }
  views_.clear();
}

void MainShards::set_trainable(int segment) {
  if (!has_views()) return;
  for (const PlacedParameter& placed : unit_.segment(segment).parameters) {
    views_[placed.parameter].set_requires_grad(true);
  }
}

}  // namespace fsdp
