// A table of segments as a kernel's parameter: by value, so that nothing is uploaded and the
// caller's table may be gone. One launch serves all segments that fit.
//
// A launch copies its parameters whole, used or not: what is called for every parameter of a model
// has its kernel twice, for few segments and for many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>

#include "kernels/cuda/launch.h"
#include "kernels/element/block_index.h"

namespace fsdp::kernels::cuda {

// CUDA's limit of all parameters of a kernel, and what a table leaves of it to others.
inline constexpr int64_t kParameterBytes = 32764;
inline constexpr int64_t kOtherParameterBytes = 256;

inline constexpr int kFewSegments = 16;
template <class Segment, int64_t kOthers = kOtherParameterBytes>
inline constexpr int kManySegments = static_cast<int>((kParameterBytes - kOthers) /
                                                      (sizeof(Segment) + 4));

// ends[i]: blocks of the segments up to i and with it.
template <class Segment, int kMost>
struct SegmentTable {
  int32_t count = 0;
  uint32_t ends[kMost];
  Segment segments[kMost];

  int64_t blocks() const { return count == 0 ? 0 : ends[count - 1]; }
  bool has_room(int64_t more_blocks) const {
    return count < kMost && blocks() + more_blocks <= kMostBlocks;
  }
  void add(const Segment& segment, int64_t its_blocks) {
    segments[count] = segment;
    ends[count] = static_cast<uint32_t>(blocks() + its_blocks);
    ++count;
  }
};
template <class Segment>
using FewSegments = SegmentTable<Segment, kFewSegments>;
template <class Segment>
using ManySegments = SegmentTable<Segment, kManySegments<Segment>>;

// Requires: `table` has at most kFewSegments.
template <class Segment, int kMost>
FewSegments<Segment> few_of(const SegmentTable<Segment, kMost>& table) {
  FewSegments<Segment> few;
  static_assert(sizeof few <= 2048);
  few.count = table.count;
  std::copy_n(table.ends, table.count, few.ends);
  std::copy_n(table.segments, table.count, few.segments);
  return few;
}

#if defined(__CUDACC__)

// Of a block of the launch: its segment, and its number among that segment's blocks.
struct BlockPlace {
  int segment;
  int64_t block;
};

template <class Segment, int kMost>
__device__ __forceinline__ BlockPlace place_of_block(const SegmentTable<Segment, kMost>& table) {
  const uint32_t block = blockIdx.x;
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (block < table.ends[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {low, int64_t{block} - (low == 0 ? 0 : table.ends[low - 1])};
}

#endif

// A kernel over a table, for each size of it.
template <class Segment, class... Others>
struct TableKernel {
  void (*many)(ManySegments<Segment>, Others...);
  void (*few)(FewSegments<Segment>, Others...) = nullptr;  // null: it has the one

  // Errors: DeviceError naming the kernel.
  void load(std::string_view name) const {
    cuda::load(name, many);
    if (few != nullptr) cuda::load(name, few);
  }
};

// Collects segments and launches when a table is full, and when it is told to.
template <class Segment, class... Others>
class TableLaunch {
 public:
  TableLaunch(Stream& stream, std::string_view name, const TableKernel<Segment, Others...>& kernel,
              const Others&... others)
      : launch_([&stream, name, kernel, others...](const ManySegments<Segment>& table) {
          if (kernel.few != nullptr && table.count <= kFewSegments) {
            launch(stream, name, kernel.few, table.blocks(), kBlockThreads, few_of(table),
                   others...);
          } else {
            launch(stream, name, kernel.many, table.blocks(), kBlockThreads, table, others...);
          }
        }),
        name_(name) {}

  // Errors: InvalidArgument if one segment has more blocks than a launch.
  void add(const Segment& segment, int64_t blocks) {
    if (blocks == 0) return;
    if (blocks > kMostBlocks) refuse_blocks(name_, blocks);
    if (!table_.has_room(blocks)) issue();
    table_.add(segment, blocks);
  }

  void issue() {
    if (table_.count > 0) launch_(table_);
    table_.count = 0;
  }

 private:
  std::function<void(const ManySegments<Segment>&)> launch_;
  std::string_view name_;
  ManySegments<Segment> table_;
};

}  // namespace fsdp::kernels::cuda
