#include "plan/shard_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "fsdp/error.h"
#include "plan/support/parameter_spec.h"

using namespace fsdp;
using testing::spec;

TEST_CASE("parameters start at multiples of 128 elements and slices are even") {
  const ShardLayout layout({spec("a", 5), spec("b", 130), spec("c", 1)}, 3);
  REQUIRE(layout.segments().size() == 1);
  const SegmentLayout& segment = layout.segments()[0];
  CHECK(
      (segment.parameters == std::vector<PlacedParameter>{{0, 0, 5}, {1, 128, 130}, {2, 384, 1}}));
  // 385 elements in 3 slices are 129 each, rounded up to a multiple of 16 elements (a cache line).
  CHECK(segment.slice_numel == 144);
  CHECK(segment.numel == 432);
  CHECK((segment.gaps == std::vector<Gap>{{5, 123}, {258, 126}, {385, 47}}));
  CHECK(layout.parameter_numel() == 136);
}

TEST_CASE("every element belongs to exactly one rank's interval, for any sizes and world") {
  const std::vector<std::vector<int64_t>> sizes = {
      {1}, {0, 7, 0}, {127, 128, 129}, {1000003}, {3, 1, 4, 1, 5, 9, 2, 6}, {0}};
  for (const auto& numels : sizes) {
    for (const int ranks : {1, 2, 3, 5, 7, 64}) {
      CAPTURE(ranks);
      std::vector<ParameterSpec> specs;
      for (const int64_t numel : numels) specs.push_back(spec("p", numel));
      const ShardLayout layout(specs, ranks);
      for (size_t s = 0; s < layout.segments().size(); ++s) {
        const SegmentLayout& segment = layout.segments()[s];
        CHECK(segment.numel == segment.slice_numel * ranks);
        std::vector<int64_t> next(numels.size());
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<Interval> intervals = layout.intervals(static_cast<int>(s), rank);
          REQUIRE(intervals.size() == numels.size());  // includes empty intervals
          for (const Interval& interval : intervals) {
            if (interval.numel == 0) continue;
            CHECK(interval.begin == next[interval.parameter]);
            CHECK(interval.offset + interval.numel <= segment.slice_numel);
            CHECK(rank * segment.slice_numel + interval.offset ==
                  layout.place_of(interval.parameter).offset + interval.begin);
            next[interval.parameter] += interval.numel;
          }
        }
        CHECK(next == numels);
      }
    }
  }
}

TEST_CASE("with a granule slices divide parameters only at its multiples") {
  for (const int64_t granule : {8, 256, 1024}) {
    for (const int ranks : {1, 2, 3, 5}) {
      CAPTURE(granule);
      CAPTURE(ranks);
      const ShardLayout layout({spec("a", 5), spec("b", 4097), spec("c", 70), spec("d", 3001)},
                               ranks, granule);
      const SegmentLayout& segment = layout.segments()[0];
      CHECK(segment.slice_numel % std::max<int64_t>(granule, 16) == 0);
      for (const PlacedParameter& each : segment.parameters) {
        CHECK(each.offset % std::max<int64_t>(granule, 128) == 0);
      }
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Interval& each : layout.intervals(0, rank)) {
          if (each.numel == 0) continue;
          const int64_t numel = layout.parameters()[each.parameter].numel,
                        end = each.begin + each.numel;
          CHECK(each.begin % granule == 0);
          CHECK((end % granule == 0 || end == numel));
        }
      }
    }
  }
  for (const int64_t granule : {0, -256, 384, 2048}) {
    CHECK_THROWS_WITH_AS(ShardLayout::require_granule(granule),
                         doctest::Contains("expected a power of two from 1 to 1024"),
                         InvalidArgument);
  }
}

TEST_CASE("gaps and parameters together cover a segment without overlap") {
  const ShardLayout layout({spec("a", 200), spec("b", 0), spec("c", 128), spec("d", 3)}, 2);
  const SegmentLayout& segment = layout.segments()[0];
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const auto& placed : segment.parameters) runs.emplace_back(placed.offset, placed.numel);
  for (const auto& gap : segment.gaps) runs.emplace_back(gap.offset, gap.numel);
  std::erase_if(runs, [](const auto& run) { return run.second == 0; });
  std::sort(runs.begin(), runs.end());
  int64_t end = 0;
  for (const auto& [offset, numel] : runs) {
    CHECK(offset == end);
    end = offset + numel;
  }
  CHECK(end == segment.numel);
}

TEST_CASE("types and frozen parameters are segments of their own") {
  const ShardLayout layout({spec("a", 10), spec("b", 10, DType::kBFloat16),
                            spec("c", 10, DType::kFloat32, false), spec("d", 10, DType::kBFloat16)},
                           2);
  REQUIRE(layout.segments().size() == 3);
  CHECK(layout.segment_of(0) == 0);
  CHECK(layout.segment_of(1) == 1);
  CHECK(layout.segment_of(2) == 2);
  CHECK(layout.segment_of(3) == 1);
  CHECK(layout.slice_numel() == 16 + 80 + 16);
  CHECK(layout.trainable_slice_numel() == 16 + 80);
  // A slot holds 32 fp32 elements, then 160 bf16 elements, then 32 fp32 elements. Each group begins
  // at a multiple of 512 bytes.
  CHECK(layout.unsharded_offset_bytes(1) == 512);
  CHECK(layout.unsharded_offset_bytes(2) == 1024);
  CHECK(layout.unsharded_bytes() == 1536);
}

TEST_CASE("a unit without parameters has an empty layout") {
  const ShardLayout layout({}, 3);
  CHECK(layout.segments().empty());
  CHECK(layout.unsharded_bytes() == 0);
  CHECK(layout.slice_numel() == 0);
  CHECK_FALSE(layout.has_trainable());
}

TEST_CASE("with one rank the slice is the segment") {
  const ShardLayout layout({spec("a", 1000003)}, 1);
  CHECK(layout.segments()[0].slice_numel == layout.segments()[0].numel);
  CHECK((layout.intervals(0, 0) == std::vector<Interval>{{0, 0, 0, 1000003}}));
}
