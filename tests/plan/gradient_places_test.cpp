#include "plan/gradient_places.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "plan/support/parameter_spec.h"

using namespace fsdp;
using testing::spec;

namespace {

constexpr int64_t kLarge = GradientPlaces::kLentBytes / 4;

}  // namespace

TEST_CASE("whole gradients lie segment by segment, trainable ones only") {
  const ShardLayout layout({spec("a", 10), spec("b", 10, DType::kBFloat16),
                            spec("c", 10, DType::kFloat32, false), spec("d", 10, DType::kBFloat16)},
                           2);
  const GradientPlaces fp32(layout, DType::kFloat32, true);
  CHECK(fp32.slot_bytes() == 512 + 1024);
  CHECK(fp32.whole_bytes() == fp32.slot_bytes());
  CHECK(fp32.slot_offset_bytes(1, 3) == 512 + 3 * 4);
  CHECK(GradientPlaces(layout, DType::kBFloat16, true).slot_bytes() == 512 + 512);
}

TEST_CASE("what lends: one fp32 parameter, large, and more than half of its segment") {
  const auto zero_copy = [](const std::vector<ParameterSpec>& specs, bool may_lend = true) {
    const GradientPlaces places(ShardLayout(specs, 2), DType::kFloat32, may_lend);
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      if (places.lends(i)) return i;
    }
    CHECK_FALSE(places.any_lends());
    return -1;
  };
  CHECK(zero_copy({spec("a", 10), spec("large", kLarge), spec("b", 10)}) == 1);
  CHECK(zero_copy({spec("a", 10), spec("large", kLarge - 1), spec("b", 10)}) == -1);
  CHECK(zero_copy({spec("one", kLarge), spec("other", kLarge)}) == -1);
  CHECK(zero_copy({spec("large", kLarge)}, /*may_lend=*/false) == -1);
  CHECK(zero_copy({spec("large", 2 * kLarge, DType::kBFloat16)}) == -1);
  CHECK(zero_copy({spec("frozen", kLarge, DType::kFloat32, false)}) == -1);
}

TEST_CASE("slot and lent gradient together are the segment, element by element") {
  for (const int64_t odd : {0, 1, 127, 128, 129}) {
    for (const int ranks : {2, 3, 7}) {
      CAPTURE(odd);
      CAPTURE(ranks);
      const ShardLayout layout(
          {spec("a", 130), spec("large", kLarge + odd), spec("b", 5), spec("c", 300)}, ranks);
      const GradientPlaces places(layout, DType::kFloat32, true);
      REQUIRE(places.lends(1));
      CHECK_FALSE(places.lends(0));
      const SegmentLayout& segment = layout.segments()[0];
      // The value of each element is its index in the segment.
      std::vector<float> slot(places.slot_bytes() / 4, -1), zero_copy(kLarge + odd);
      const int64_t begin = segment.parameters[1].offset;
      std::iota(zero_copy.begin(), zero_copy.end(), static_cast<float>(begin));
      const auto write = [&](int64_t offset, int64_t numel) {
        for (int64_t i = offset; i < offset + numel; ++i) {
          slot.at(places.slot_offset_bytes(0, i) / 4) = static_cast<float>(i);
        }
      };
      for (const PlacedParameter& place : segment.parameters) {
        if (place.parameter != 1) write(place.offset, place.numel);
      }
      for (const Gap& gap : segment.gaps) write(gap.offset, gap.numel);
      int64_t next = 0, wrong = 0;
      for (const SendRun& run : places.runs(0, slot.data(), zero_copy.data())) {
        for (int64_t i = 0; i < run.numel; ++i) {
          wrong += static_cast<const float*>(run.data)[i] != static_cast<float>(next++);
        }
      }
      CHECK(wrong == 0);
      CHECK(next == segment.numel);
      CHECK(places.whole_bytes() - places.slot_bytes() <= (kLarge + odd) * 4);
      CHECK(places.whole_bytes() >= segment.numel * 4);
    }
  }
}

TEST_CASE("a unit that is one parameter without gaps needs no slot") {
  const ShardLayout layout({spec("large", kLarge)}, 2);
  const GradientPlaces places(layout, DType::kFloat32, true);
  CHECK(places.slot_bytes() == 0);
  const auto runs = places.runs(0, nullptr, &layout);
  CHECK(runs[1].numel == kLarge);
  CHECK(runs[0].numel + runs[2].numel == 0);
}
