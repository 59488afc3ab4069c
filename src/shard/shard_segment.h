// A segment's memory: main shard, mapped view of all ranks', resident copy. Private to ShardUnit.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/ranks_view.h"
#include "shard/shard_unit.h"

namespace fsdp {

struct ShardUnit::Segment {
  Segment(const SegmentLayout& segment_layout, const Mesh& mesh, Buffer main_shard);

  // [Note: changes without a version]
  // Optimizers change main shards through local views, whose version counter is main_tensor's. But
  // some (torch::optim::SGD) write through Tensor::data(), which has a counter of its own: once
  // views are handed out, only the content tells.
  uint64_t content() const;

  const SegmentLayout& layout;
  // slice_numel fp32. Shared with the views of it that users and optimizers hold, also when the
  // engine is gone.
  std::shared_ptr<const MeshBuffer> memory;
  const Buffer& main;
  at::Tensor main_tensor;  // the same memory; its version counter tells of changes
  RanksView mapped;        // all ranks' slices side by side, where they are read as they lie
  Buffer resident;         // whole, in layout.dtype, where parameters are not sharded and not fp32
  int64_t seen_version = 0;     // of main_tensor, when last looked at
  uint64_t seen_content = 0;    // digest of main, then; only once local views are handed out
  int64_t copied_version = -1;  // of main_tensor, when the resident copy was written
};

}  // namespace fsdp
