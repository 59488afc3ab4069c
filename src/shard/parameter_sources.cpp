#include "shard/parameter_sources.h"

#include <utility>

#include "kernels/cast_pack.h"
#include "kernels/fill.h"
#include "shard/piece_gather.h"

namespace fsdp {
namespace {

// A resident copy of this rank's piece of the parameters, in the segments' dtypes. The copy is
// gathered again after main shards have changed. The copy of a float32 segment contains the main
// shard itself, unless main shards are on the host.
class ResidentPieces {
 public:
  ResidentPieces(const UnitContext& unit, MainShards& main) : unit_(unit), main_(main) {
    ShardContext& shared = unit.shared;
    for (int i = 0; i < unit.segments(); ++i) {
      const DType dtype = unit.segment(i).dtype;
      const Piece held = piece(i);
      const int64_t bytes = held.numel * size_of(dtype);
      const auto& copy = copies_.emplace_back(
          std::make_shared<const MeshBuffer>(shared.mesh, shared.memory.allocate(bytes)));
      shared.memory.ledger.hold(bytes);
      bytes_ += bytes;
      if (dtype != DType::kFloat32 || shared.main->is_host()) continue;
      const Piece slice = unit.piece(unit.collectives.row.optimizer, i);
      main.relocate(i, copy, copy->buffer.at((slice.begin - held.begin) * size_of(dtype)));
      // relocate() has freed the slice's own memory. The slice is now in the copy. Its bytes are
      // already counted as main shards, so they are not counted again as a part of the copy.
      shared.memory.ledger.hold(-main.bytes(i));
      bytes_ -= main.bytes(i);
    }
    shared.memory.ledger.take(MemoryCategory::kResidentParameters, bytes_);
  }
  ~ResidentPieces() {
    unit_.shared.memory.ledger.give(MemoryCategory::kResidentParameters, bytes_);
  }
  ResidentPieces(const ResidentPieces&) = delete;
  ResidentPieces& operator=(const ResidentPieces&) = delete;

  Piece piece(int segment) const { return unit_.piece(unit_.collectives.row.parameters, segment); }
  std::byte* at(int segment) const { return copies_[segment]->buffer.at(0); }
  // Returns the bytes of the copy, without those of main shards that it contains.
  int64_t bytes() const { return bytes_; }

  // Gathers the copy on the gather stream. Returns false if the copy is up to date.
  bool refresh() {
    if (!std::exchange(is_stale_, false) || unit_.layout.unsharded_bytes() == 0) return false;
    std::vector<std::byte*> places;
    for (int i = 0; i < unit_.segments(); ++i) places.push_back(at(i));
    main_.all_gather(unit_.collectives.after_update, unit_.collectives.row.parameters, places);
    return true;
  }

  // All ranks must make the same decision whether to gather, even if their own slice has not
  // changed. So a change makes the copy stale only at the next forward, which all ranks begin. (The
  // backward of a graph made before the change throws anyway.) Wait 1 of that forward orders the
  // gather after all reads of the copy.
  void follow_main(const MainChange& change) {
    may_differ_ = may_differ_ || change.known || change.possible;
    if (!change.at_forward || !may_differ_) return;
    may_differ_ = false;
    is_stale_ = true;
  }

 private:
  const UnitContext& unit_;
  const MainShards& main_;
  std::vector<std::shared_ptr<const MeshBuffer>> copies_;  // shared with views of main shards
  int64_t bytes_ = 0;
  bool is_stale_ = true;
  bool may_differ_ = false;  // the main shards may have changed since the last forward began
};

// A source that gathers into a slot for each use. The unit holds the slot from begin() to end().
// The gather stream writes the slot, and the compute stream reads it.
class GatheredSlot : public ParameterSource {
 public:
  GatheredSlot(const UnitContext& unit, MainShards& main)
      : unit_(unit),
        main_(main),
        bytes_(unit.layout.unsharded_bytes()),
        gathered_(unit.shared.streams.device) {
    if (!unit.collectives.after_update.empty())
      pieces_ = std::make_unique<ResidentPieces>(unit, main);
  }

  bool begin(Urgency urgency) override {
    if (bytes_ == 0) return true;
    // Only a missing slot can make a prefetch fail, so the slot is acquired before anything is
    // issued. The number of slots is planned alike on all ranks, so all ranks issue the same
    // gathers.
    BufferPool& pool = unit_.shared.memory.parameter_slots;
    Slot* slot = urgency == Urgency::kPrefetch ? pool.try_acquire(bytes_) : pool.acquire(bytes_);
    if (slot == nullptr) return false;
    slot_ = slot;
    Stream& stream = *unit_.shared.streams.gather;
    unit_.shared.streams.gather_after(slot_->released);  // wait 2
    if (pieces_) {
      gather_pieces();
    } else {
      std::vector<std::byte*> places;
      for (int i = 0; i < unit_.segments(); ++i) places.push_back(whole(i));
      main_.all_gather(unit_.collectives.on_unshard, Placement::kReplicate, places);
    }
    stream.record(gathered_);
    return true;
  }

  void wait() override {
    if (bytes_ == 0) return;
    ShardContext& shared = unit_.shared;
    const ExposedTimer timer(shared.streams);
    const ContextSpan span =
        shared.streams.span(*shared.streams.compute, "wait for gather", unit_.fqn);
    shared.streams.compute->wait(gathered_);  // wait 3
  }

  // If the compute stream has not waited for the gather, the gather may still write the slot, so
  // the release is recorded after the gather. The host does not wait here, because the wait could
  // throw the error of a failed gather.
  void end(bool waited) override {
    if (bytes_ == 0) return;
    ShardContext& shared = unit_.shared;
    if (!waited) shared.streams.leave_gather();
    Stream& stream = waited ? *shared.streams.compute : *shared.streams.gather;
    if (shared.debug) fill_nan(stream);
    stream.record(slot_->released);  // wait 4
    shared.memory.parameter_slots.release(std::exchange(slot_, nullptr));
  }

  std::byte* whole(int segment) const override {
    if (slot_ == nullptr) return nullptr;  // all of the unit's parameters are empty
    return slot_->at(unit_.layout.unsharded_offset_bytes(segment));
  }
  int64_t slot_bytes() const override { return bytes_; }
  int64_t resident_bytes() const override { return pieces_ ? pieces_->bytes() : 0; }
  void follow_main(const MainChange& change) override {
    if (pieces_) pieces_->follow_main(change);
  }

 private:
  // Issues two gathers on one stream. The first one updates the resident pieces from the main
  // shards, if these have changed. The second one gathers the whole parameters from the pieces.
  void gather_pieces() const {
    ShardContext& shared = unit_.shared;
    pieces_->refresh();
    const ExposedTimer timer(shared.streams);
    Stream& stream = *shared.streams.gather;
    const ContextSpan span = shared.streams.span(stream, "gather", unit_.fqn);
    PieceGather gather(unit_);
    for (int i = 0; i < unit_.segments(); ++i) {
      gather.add(pieces_->piece(i), unit_.segment(i).dtype, pieces_->at(i), whole(i), 0);
    }
    gather.issue(unit_.collectives.on_unshard, stream);
  }
  void fill_nan(Stream& stream) const {
    std::vector<kernels::FillRun> runs;
    for (int i = 0; i < unit_.segments(); ++i) {
      runs.push_back({whole(i), unit_.segment(i).numel, unit_.segment(i).dtype});
    }
    kernels::fill_nan(stream, runs);
  }

  const UnitContext& unit_;
  const MainShards& main_;
  const int64_t bytes_;
  std::unique_ptr<ResidentPieces> pieces_;  // source of the gathers; null: the main shards
  Slot* slot_ = nullptr;                    // null unless between begin and end
  Event gathered_;
};

// A source that reads peers' shards in place: [Note: reading mapped shards] in peer_reads.h.
// Barriers at the begin and end of a pass order the reads, so begin() and wait() do nothing.
class MappedShards : public ParameterSource {
 public:
  MappedShards(const UnitContext& unit, std::vector<RanksView> ranks)
      : unit_(unit), ranks_(std::move(ranks)) {}

  std::byte* whole(int segment) const override {
    return static_cast<std::byte*>(ranks_[segment].data());
  }

  // The views are read-only, so a write has changed only a private copy of the pages ([Note:
  // guarded writes] in write_guard.h). take_write drops this copy, so it is called for every
  // segment.
  std::optional<int> take_stray_write() override {
    std::optional<int> first;
    for (int i = 0; i < unit_.segments(); ++i) {
      const std::optional<int64_t> at = ranks_[i].take_write();
      if (!at || first) continue;
      for (const PlacedParameter& placed : unit_.segment(i).parameters) {
        if (placed.offset * size_of(DType::kFloat32) <= *at) first = placed.parameter;
      }
    }
    return first;
  }

 private:
  const UnitContext& unit_;
  std::vector<RanksView> ranks_;
};

// The whole parameters stay resident, so a use needs a gather only after a change of main shards.
class GatheredResident : public ParameterSource {
 public:
  GatheredResident(const UnitContext& unit, MainShards& main)
      : unit_(unit), pieces_(unit, main), gathered_(unit.shared.streams.device) {}

  bool begin(Urgency /*urgency*/) override {
    if (!pieces_.refresh()) return true;
    unit_.shared.streams.gather->record(gathered_);
    is_gathering_ = true;
    return true;
  }
  void wait() override {
    if (!std::exchange(is_gathering_, false)) return;
    ShardContext& shared = unit_.shared;
    const ExposedTimer timer(shared.streams);
    const ContextSpan span =
        shared.streams.span(*shared.streams.compute, "wait for gather", unit_.fqn);
    shared.streams.compute->wait(gathered_);  // wait 3
  }
  // If the compute stream has not waited for the gather, is_gathering_ stays set, so that the next
  // use waits for the same gather.
  void end(bool waited) override {
    if (!waited && is_gathering_) unit_.shared.streams.leave_gather();
  }
  std::byte* whole(int segment) const override { return pieces_.at(segment); }
  int64_t resident_bytes() const override { return pieces_.bytes(); }
  void follow_main(const MainChange& change) override { pieces_.follow_main(change); }

 private:
  const UnitContext& unit_;
  ResidentPieces pieces_;
  bool is_gathering_ = false;
  Event gathered_;
};

// Segments in float32 are read from the main shards in place. The other segments have copies, which
// compute both writes and reads, so no wait is needed.
class CastResident : public ParameterSource {
 public:
  CastResident(const UnitContext& unit, const MainShards& main)
      : unit_(unit), main_(main), copies_(unit.segments()), copied_versions_(unit.segments(), -1) {
    for (int i = 0; i < unit.segments(); ++i) {
      if (unit.segment(i).dtype == DType::kFloat32) continue;
      copies_[i] = unit.shared.memory.allocate(unit.segment(i).bytes());
      resident_bytes_ += copies_[i].bytes();
    }
    unit.shared.memory.ledger.hold(resident_bytes_);
    unit.shared.memory.ledger.take(MemoryCategory::kResidentParameters, resident_bytes_);
    refresh();
  }
  ~CastResident() override {
    unit_.shared.memory.ledger.give(MemoryCategory::kResidentParameters, resident_bytes_);
  }

  std::byte* whole(int segment) const override {
    std::byte* copy = copy_of_main(segment);
    return copy != nullptr ? copy : reinterpret_cast<std::byte*>(main_.data(segment));
  }
  int64_t resident_bytes() const override { return resident_bytes_; }
  std::byte* copy_of_main(int segment) const override { return copies_[segment].at(0); }

  // Each segment's version is about to increase by one. If a copy was up to date and was written
  // together with the main shard, it remains up to date.
  void main_changes(bool copies_written) override {
    if (!copies_written) return;
    for (int i = 0; i < unit_.segments(); ++i) {
      if (copied_versions_[i] == main_.version(i)) ++copied_versions_[i];
    }
  }
  void follow_main(const MainChange& change) override {
    if (change.known) refresh();
  }

 private:
  // Casts all segments that have changed since their copy was written, in one launch.
  void refresh() {
    std::vector<kernels::CastRun> runs;
    for (int i = 0; i < unit_.segments(); ++i) {
      if (!copies_[i] || copied_versions_[i] == main_.version(i)) continue;
      runs.push_back({main_.data(i), copies_[i].data(), unit_.segment(i).numel, DType::kFloat32,
                      unit_.segment(i).dtype});
      copied_versions_[i] = main_.version(i);
    }
    kernels::cast_pack(*unit_.shared.streams.compute, runs);
  }

  const UnitContext& unit_;
  const MainShards& main_;
  std::vector<Buffer> copies_;            // by segment; empty for float32 segments
  std::vector<int64_t> copied_versions_;  // version of the main shard when the copy was written
  int64_t resident_bytes_ = 0;
};

// A source without a copy: parameters are the main shards, so a forward that writes a parameter
// writes the main shard.
class MainShard : public ParameterSource {
 public:
  explicit MainShard(const MainShards& main) : main_(main) {}
  std::byte* whole(int segment) const override {
    return reinterpret_cast<std::byte*>(main_.data(segment));
  }
  bool keeps_writes() const override { return true; }

 private:
  const MainShards& main_;
};

bool all_float32(const UnitContext& unit) {
  for (const SegmentLayout& segment : unit.layout.segments()) {
    if (segment.dtype != DType::kFloat32) return false;
  }
  return true;
}

// Maps all segments or none. map_ranks is collective, so all ranks must make the same decision
// whether to call it. The ranks decide before the first call, from the layout, which is equal on
// all ranks. The result of map_ranks is also equal on all ranks.
std::vector<RanksView> map_ranks(const UnitContext& unit, const MainShards& main) {
  std::vector<RanksView> ranks;
  if (!all_float32(unit)) return ranks;
  for (int i = 0; i < unit.segments(); ++i) {
    ranks.push_back(unit.shared.peers.map_ranks(main.data(i), main.bytes(i),
                                                unit.collectives.on_unshard.front().axis));
    if (!ranks.back()) return {};
  }
  return ranks;
}

}  // namespace

std::unique_ptr<ParameterSource> make_parameter_source(const UnitContext& unit, MainShards& main) {
  const UnitCollectives& collectives = unit.collectives;
  // No collective is needed at each unshard, because whole parameters are resident.
  if (collectives.on_unshard.empty() && collectives.upload != Upload::kForUse) {
    if (collectives.gathers()) return std::make_unique<GatheredResident>(unit, main);
    if (all_float32(unit)) return std::make_unique<MainShard>(main);
    return std::make_unique<CastResident>(unit, main);
  }
  // If there are resident pieces, an unshard gathers them. Main shards cannot be mapped instead,
  // because the pieces are larger than main shards.
  if (!collectives.after_update.empty()) return std::make_unique<GatheredSlot>(unit, main);
  std::vector<RanksView> ranks;
  if (collectives.upload == Upload::kNever) ranks = map_ranks(unit, main);
  if (ranks.empty()) return std::make_unique<GatheredSlot>(unit, main);
  return std::make_unique<MappedShards>(unit, std::move(ranks));
}

std::unique_ptr<ParameterSource> make_own_copy_source(const UnitContext& unit, MainShards& main,
                                                      const ParameterSource& usual) {
  // Mapped shards are the memory of peers. All other sources use this rank's own memory.
  const bool shows_others = dynamic_cast<const MappedShards*>(&usual) != nullptr;
  return shows_others ? std::make_unique<GatheredSlot>(unit, main) : nullptr;
}

}  // namespace fsdp
