// Passes a table of segments as a kernel parameter. The table is passed by value, so nothing is
// uploaded and the caller may free its table. One launch handles all segments that fit.
//
// A launch copies all bytes of its parameters, used or not. So a kernel that runs for every
// parameter of a model has two versions, one for few segments and one for many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>

#include "kernels/cuda/launch.h"
#include "kernels/element/block_index.h"

namespace fsdp::kernels::cuda {

// kParameterBytes is CUDA's limit for the bytes of all kernel parameters. A table leaves
// kOtherParameterBytes for other parameters.
inline constexpr int64_t kParameterBytes = 32764;
inline constexpr int64_t kOtherParameterBytes = 256;

inline constexpr int kFewSegments = 16;
template <class Segment, int64_t kOthers = kOtherParameterBytes>
inline constexpr int kManySegments = static_cast<int>((kParameterBytes - kOthers) /
                                                      (sizeof(Segment) + 4));

// A table of segments. ends[i] is the number of blocks in segments 0 to i.
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

// Returns a small copy of the table. Requires: `table` has at most kFewSegments.
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

// The position of a thread block: its segment, and its index among the blocks of that segment.
struct BlockPlace {
  int segment;
  int64_t block;
};

// Returns the position of this thread block. All threads of the block take the same path of the
// binary search.
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

// A kernel that reads a table, with one instantiation for each table size.
template <class Segment, class... Others>
struct TableKernel {
  void (*many)(ManySegments<Segment>, Others...);
  void (*few)(FewSegments<Segment>, Others...) = nullptr;  // null: `many` handles all sizes

  // Loads the instantiations onto the current device. Errors: DeviceError, which names the kernel.
  void load(std::string_view name) const {
    cuda::load(name, many);
    if (few != nullptr) cuda::load(name, few);
  }
};

// A collector of segments. When a table is full, and in issue(), the collector launches the kernel.
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

  // Adds a segment. Errors: InvalidArgument if it has more blocks than a launch allows.
  void add(const Segment& segment, int64_t blocks) {
    if (blocks == 0) return;
    if (blocks > kMostBlocks) refuse_blocks(name_, blocks);
    if (!table_.has_room(blocks)) issue();
    table_.add(segment, blocks);
  }

  // Launches the segments that were added since the last launch, if any.
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
