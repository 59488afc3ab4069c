// Whole values of a unit: read from the main shards, and written back to them.
#include <cstring>

#include "kernels/cast_pack.h"
#include "shard/shard_segment.h"
#include "shard/shard_unit.h"

namespace fsdp {

void ShardUnit::gather_main(std::vector<Buffer>& whole) {
  whole.clear();
  std::vector<CollectivePart> parts;
  for (const auto& segment : segments_) {
    const int64_t numel = segment->layout.slice_numel;
    whole.push_back(lanes_.allocate(segment->layout.numel * size_of(DType::kFloat32)));
    if (lanes_.shards_parameters()) {
      parts.push_back({segment->main.data(), whole.back().data(), numel, DType::kFloat32});
    } else if (numel > 0) {
      std::memcpy(whole.back().data(), segment->main.data(), segment->main.bytes());
    }
  }
  if (parts.empty()) return;
  lanes_.gather().all_gather(parts, next_tag(Operation::kAllGather, layout_.slice_numel()),
                             *lanes_.gather_stream);
  lanes_.gather_stream->record(gathered_);
  lanes_.compute->wait(gathered_);
}

// What rank 0 has changed, and the values, on every rank.
void ShardUnit::broadcast_changed(std::vector<uint8_t>& changed) {
  if (lanes_.one_rank() || changed.empty()) return;
  const auto from_zero = [&](const std::vector<CollectivePart>& parts) {
    lanes_.gather().broadcast(parts, 0, next_tag(Operation::kBroadcast, 0), *lanes_.gather_stream);
    lanes_.gather_stream->synchronize();
  };
  from_zero(
      {{changed.data(), changed.data(), static_cast<int64_t>(changed.size()), DType::kUInt8}});
  std::vector<CollectivePart> values;
  for (size_t i = 0; i < changed.size(); ++i) {
    if (!changed[i]) continue;
    const at::Tensor& parameter = parameters()[i];
    void* data = parameter.data_ptr();
    values.push_back({data, data, static_cast<int64_t>(parameter.nbytes()), DType::kUInt8});
  }
  if (!values.empty()) from_zero(values);
}

void ShardUnit::write_back(bool from_rank_zero) {
  require(ParameterState::kUnsharded, "write_back");
  seats_.adopt_replaced();
  // Whole copies on several ranks must not drift apart: there rank 0's values count in any case.
  from_rank_zero = from_rank_zero || lanes_.all_reduces_gradients();
  std::vector<uint8_t> changed(parameters().size());
  for (size_t i = 0; i < changed.size(); ++i) {
    changed[i] = seats_.has_changed(static_cast<int>(i)) ? 1 : 0;
  }
  if (from_rank_zero) broadcast_changed(changed);
  std::vector<kernels::CastRun> runs;
  for (size_t i = 0; i < changed.size(); ++i) {
    if (!changed[i] || local_[i].numel == 0) continue;
    const Segment& segment = *segments_[layout_.segment_of(static_cast<int>(i))];
    const DType dtype = segment.layout.dtype;
    const auto* values = static_cast<const std::byte*>(parameters()[i].const_data_ptr());
    std::byte* place = segment.main.at(local_[i].offset * size_of(DType::kFloat32));
    const std::byte* source = values + local_[i].begin * size_of(dtype);
    if (source != place) runs.push_back({source, place, local_[i].numel, dtype, DType::kFloat32});
  }
  kernels::cast_pack(*lanes_.compute, runs);
  seats_.forget_changes();
  mark_changed(/*copies_written=*/false);
}

}  // namespace fsdp
