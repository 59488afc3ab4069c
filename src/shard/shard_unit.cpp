#include "shard/shard_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "kernels/fill.h"
#include "shard/shard_segment.h"

namespace fsdp {
namespace {

std::string_view name_of(ParameterState state) {
  switch (state) {
    case ParameterState::kSharded:
      return "sharded";
    case ParameterState::kGathering:
      return "gathering";
    case ParameterState::kUnsharded:
      return "unsharded";
  }
  return "unknown";
}

}  // namespace

void ShardUnit::require(ParameterState expected, std::string_view transition) const {
  if (state_ == expected) return;
  throw StateError({.what = fmt::format("{} of a unit that is {}, expected {}", transition,
                                        name_of(state_), name_of(expected)),
                    .where = name_of_unit(fqn_),
                    .cause = {},
                    .hint = {}});
}

ShardUnit::ShardUnit(std::string fqn, Lanes& lanes, ShardLayout layout,
                     std::vector<at::Tensor> parameters, std::vector<Buffer> main)
    : fqn_(std::move(fqn)),
      lanes_(lanes),
      layout_(std::move(layout)),
      seats_(layout_, std::move(parameters), fqn_),
      lent_(layout_.segments().size()),
      arrived_(seats_.tensors().size(), 0) {
  make_places();
  for (size_t i = 0; i < layout_.segments().size(); ++i) {
    segments_.push_back(
        std::make_unique<Segment>(layout_.segments()[i], lanes_.mesh, std::move(main[i])));
    Segment& segment = *segments_.back();
    lanes_.ledger.take(MemoryCategory::kMainShards, segment.main.bytes());
    if (!lanes_.shards_parameters() && segment.layout.dtype != DType::kFloat32) {
      segment.resident = lanes_.allocate(segment.layout.bytes());
      lanes_.ledger.hold(segment.resident.bytes());
      lanes_.ledger.take(MemoryCategory::kResidentParameters, segment.resident.bytes());
    }
    for (const Interval& interval : layout_.intervals(static_cast<int>(i), lanes_.shard_rank())) {
      if (local_.size() <= static_cast<size_t>(interval.parameter)) {
        local_.resize(arrived_.size());
      }
      local_[interval.parameter] = interval;
    }
  }
  map_ranks();
  refresh_resident_copies();
}

ShardUnit::~ShardUnit() {
  for (const auto& segment : segments_) {
    lanes_.ledger.give(MemoryCategory::kMainShards, segment->main.bytes());
    lanes_.ledger.give(MemoryCategory::kResidentParameters, segment->resident.bytes());
  }
}

// All segments or none. The layout decides, so that every rank decides alike.
void ShardUnit::map_ranks() {
  mapped_ = !segments_.empty();
  for (const auto& segment : segments_) mapped_ &= segment->layout.dtype == DType::kFloat32;
  for (const auto& segment : segments_) {
    if (mapped_) segment->mapped = lanes_.map_ranks(segment->main);
    mapped_ = mapped_ && segment->mapped;
  }
}

int64_t ShardUnit::parameter_slot_bytes() const {
  return lanes_.shards_parameters() && !mapped_ ? layout_.unsharded_bytes() : 0;
}

int64_t ShardUnit::resident_bytes() const {
  int64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->resident.bytes();
  return bytes;
}

CollectiveTag ShardUnit::next_tag(Operation operation, int64_t numel) const {
  const std::string_view label = fqn_.empty() ? std::string_view("(root)") : fqn_;
  return lanes_.mesh.order().next(operation, numel, label);
}

bool ShardUnit::unshard(Urgency urgency) {
  require(ParameterState::kSharded, "unshard");
  const int64_t bytes = parameter_slot_bytes();
  if (bytes > 0) {
    Slot* slot = urgency == Urgency::kPrefetch ? lanes_.parameter_slots.try_acquire(bytes)
                                               : lanes_.parameter_slots.acquire(bytes);
    if (slot == nullptr) return false;
    gather_into(slot);
  }
  state_ = ParameterState::kGathering;
  return true;
}

void ShardUnit::unshard_own_copy() {
  require(ParameterState::kSharded, "unshard");
  if (lanes_.shards_parameters() && layout_.unsharded_bytes() > 0) {
    gather_into(lanes_.parameter_slots.acquire(layout_.unsharded_bytes()));
  }
  state_ = ParameterState::kGathering;
}

void ShardUnit::gather_into(Slot* slot) {
  parameter_slot_ = slot;
  const ExposedTimer timer(lanes_);
  Stream& stream = *lanes_.gather_stream;
  stream.wait(parameter_slot_->released);  // wait 2
  const StreamSpan span = lanes_.span(*lanes_.gather_stream, "gather", fqn_);
  std::vector<CollectivePart> parts;
  std::vector<kernels::CastRun> casts;
  int64_t numel = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const SegmentLayout& layout = segments_[i]->layout;
    std::byte* whole = parameter_slot_->at(layout_.unsharded_offset_bytes(static_cast<int>(i)));
    std::byte* own = whole + lanes_.shard_rank() * layout.slice_numel * size_of(layout.dtype);
    void* main = segments_[i]->main.data();
    // With a lower param_dtype the shard is cast into its place and gathered in place; else the
    // gather reads the shard as it lies.
    const bool casts_here = layout.dtype != DType::kFloat32;
    if (casts_here) casts.push_back({main, own, layout.slice_numel, DType::kFloat32, layout.dtype});
    parts.push_back({casts_here ? own : main, whole, layout.slice_numel, layout.dtype});
    numel += layout.slice_numel;
  }
  if (!casts.empty()) kernels::cast_pack(stream, casts);
  lanes_.gather().all_gather(parts, next_tag(Operation::kAllGather, numel), stream);
  stream.record(gathered_);
  ++lanes_.all_gathers;
}

void ShardUnit::wait_for_unshard() {
  require(ParameterState::kGathering, "wait_for_unshard");
  if (parameter_slot_ != nullptr) {
    const ExposedTimer timer(lanes_);
    const StreamSpan span = lanes_.span(*lanes_.compute, "wait for gather", fqn_);
    lanes_.compute->wait(gathered_);  // wait 3
  }
  check_seats();
  seat();
  state_ = ParameterState::kUnsharded;
}

void ShardUnit::reshard() {
  if (state_ == ParameterState::kSharded) require(ParameterState::kUnsharded, "reshard");
  seats_.unseat();
  if (parameter_slot_ != nullptr) {
    // A slot that was gathered and never used is still being filled: it is released behind the
    // gather, without waiting here. That also cannot throw what a failed gather would.
    Stream& stream = state_ == ParameterState::kGathering ? *lanes_.gather_stream : *lanes_.compute;
    poison(parameter_slot_, /*gradients=*/false, stream);
    stream.record(parameter_slot_->released);  // wait 4
    lanes_.parameter_slots.release(parameter_slot_);
    parameter_slot_ = nullptr;
  }
  state_ = ParameterState::kSharded;
}

void ShardUnit::seat() {
  places_of_segments_.clear();
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = *segments_[i];
    if (parameter_slot_ != nullptr) {
      places_of_segments_.push_back(
          parameter_slot_->at(layout_.unsharded_offset_bytes(static_cast<int>(i))));
    } else {
      const Buffer& own = segment.resident ? segment.resident : segment.main;
      places_of_segments_.push_back(
          static_cast<std::byte*>(mapped_ ? segment.mapped.data() : own.data()));
    }
  }
  seats_.seat(places_of_segments_);
}

void ShardUnit::check_seats() const {
  const std::optional<int> replaced = seats_.first_replaced();
  if (!replaced) return;
  throw StateError({.what = fmt::format("parameter '{}' was given other storage after the engine "
                                        "took it (to(), set_data, or an assignment to .data)",
                                        layout_.parameters()[*replaced].fqn),
                    .where = name_of_unit(fqn_),
                    .cause = {},
                    .hint =
                        "choose dtype and device through fsdp::Options, and load values through "
                        "fsdp::Gathered or Engine::sharded_parameters"});
}

bool ShardUnit::loses_writes() const {
  return parameter_slot_ != nullptr || mapped_ ||
         std::any_of(segments_.begin(), segments_.end(),
                     [](const auto& segment) { return bool(segment->resident); });
}

// Writes to mapped shards leave no version where they go through data(); each is taken, so that the
// ranks' memory is shown again.
std::optional<int> ShardUnit::take_stray_write() {
  std::optional<int> first;
  for (size_t i = 0; mapped_ && i < segments_.size(); ++i) {
    const std::optional<int64_t> at = segments_[i]->mapped.take_write();
    if (!at || first) continue;
    for (const PlacedParameter& placed : segments_[i]->layout.parameters) {
      if (placed.offset * size_of(DType::kFloat32) <= *at) first = placed.parameter;
    }
  }
  return first;
}

std::string ShardUnit::first_written() {
  const std::optional<int> stray = take_stray_write();
  std::optional<int> written = seats_.first_changed();
  if (!written) written = stray;
  if (!written) written = seats_.first_replaced();
  return written ? layout_.parameters()[*written].fqn : std::string();
}

void ShardUnit::keep_writes() {
  if (!seats_.first_changed()) return;
  for (const auto& segment : segments_) {
    torch_compat::bump_version(segment->main_tensor);
    segment->seen_version = torch_compat::version(segment->main_tensor);
    if (!local_views_.empty()) segment->seen_content = segment->content();
  }
  seats_.forget_changes();
}

void ShardUnit::absorb_changes(bool reseats) {
  bool changed = false;
  for (const auto& segment : segments_) {
    if (!local_views_.empty()) {  // [Note: changes without a version]
      const uint64_t content = segment->content();
      if (content != segment->seen_content) torch_compat::bump_version(segment->main_tensor);
      segment->seen_content = content;
    }
    const int64_t now = torch_compat::version(segment->main_tensor);
    changed = changed || now != segment->seen_version;
    segment->seen_version = now;
  }
  forget_unused_views();
  if (reseats && state_ != ParameterState::kSharded && (changed || !local_views_.empty()))
    reshard();
  if (!changed) return;
  for (const at::Tensor& parameter : parameters()) torch_compat::bump_version(parameter);
  seats_.forget_changes();
  refresh_resident_copies();
}

void ShardUnit::refresh_resident_copies() {
  for (const auto& segment : segments_) {
    if (!segment->resident || segment->copied_version == segment->seen_version) continue;
    kernels::cast_pack(*lanes_.compute,
                       std::vector<kernels::CastRun>{
                           {segment->main.data(), segment->resident.data(), segment->layout.numel,
                            DType::kFloat32, segment->layout.dtype}});
    segment->copied_version = segment->seen_version;
  }
}

void ShardUnit::mark_changed(bool copies_written) {
  for (const auto& segment : segments_) {
    const bool was_current = segment->copied_version == torch_compat::version(segment->main_tensor);
    torch_compat::bump_version(segment->main_tensor);
    if (copies_written && was_current) {
      segment->copied_version = torch_compat::version(segment->main_tensor);
    }
  }
}

void ShardUnit::poison(const Slot* slot, bool gradients, Stream& stream) {
  if (!lanes_.debug) return;
  std::vector<kernels::FillRun> runs;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int index = static_cast<int>(i);
    const SegmentLayout& layout = segments_[i]->layout;
    if (!gradients) {
      runs.push_back({slot->at(layout_.unsharded_offset_bytes(index)), layout.numel, layout.dtype});
    } else if (layout.trainable) {
      runs.push_back({slot->at(places().slot_offset_bytes(index, 0)), places().slot_numel(index),
                      whole_dtype()});
    }
  }
  kernels::fill_nan(stream, runs);
}

}  // namespace fsdp
