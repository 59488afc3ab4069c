// Tests how often a call launches kernels, with which table, and how wide its accesses are.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/reduce.h"
#include "kernels/update.h"
#include "kernels_simulated/support/arena.h"
#include "kernels_simulated/support/simulated_kernels.h"

namespace fsdp::kernels {
namespace {

using testing::sim::LaunchRecord;

std::vector<LaunchRecord> launches_of(const std::function<void(Stream&)>& call) {
  const auto stream = test::simulated_device().make_stream({.name = "gpu", .runs_beside = false});
  call(*stream);
  return test::last_launches();
}

// Checks that calls with up to `most` entries make one launch of `kernel`. If the entries are few,
// the launch must use the short table.
void check_launches(const std::string& kernel, int most,
                    const std::function<void(Stream&, int count)>& call) {
  CAPTURE(kernel);
  std::string of_few;
  for (const int count : {1, 16, 17, most}) {
    CAPTURE(count);
    const auto launches = launches_of([&](Stream& stream) { call(stream, count); });
    REQUIRE(launches.size() == 1);
    CAPTURE(launches[0].kernel);
    CHECK(launches[0].kernel.starts_with(kernel + "<"));
    if (count == 1) of_few = launches[0].kernel;
    CHECK((launches[0].kernel == of_few) == (count <= 16));
  }
  const auto launches = launches_of([&](Stream& stream) { call(stream, 2 * most + 20); });
  CHECK(launches.size() > 1);
  CHECK(launches.size() <= 3);
}

TEST_CASE("a table is one launch, of the kernel for few entries where they are few") {
  std::vector<float> from(4096, 1), to(4096, 1);
  check_launches("accumulate_kernel", 600, [&](Stream& stream, int count) {
    std::vector<AccumulateRun> runs;
    for (int i = 0; i < count; ++i) runs.push_back({&from[i], &to[i], 1});
    accumulate(stream, runs);
  });
  check_launches("cast_kernel", 600, [&](Stream& stream, int count) {
    std::vector<CastRun> runs;
    for (int i = 0; i < count; ++i) runs.push_back({&from[i], &to[i], 1});
    cast_pack(stream, runs);
  });
  check_launches("fill_kernel", 600, [&](Stream& stream, int count) {
    std::vector<FillRun> runs;
    for (int i = 0; i < count; ++i) runs.push_back({&to[i], 1});
    fill_zero(stream, runs);
  });
  check_launches("reduce_kernel", 350, [&](Stream& stream, int count) {
    std::vector<std::vector<const void*>> sources;
    for (int i = 0; i < count; ++i) sources.push_back({&from[i], &to[i]});
    std::vector<ReduceRun> runs;
    for (int i = 0; i < count; ++i) runs.push_back({sources[i], &to[i], 1});
    reduce(stream, runs, ReduceOp::kSum);
  });
}

TEST_CASE("a reduction of few entries with many sources takes the table of many") {
  std::vector<float> from(256, 1);
  float to = 0;
  const auto kernel_for = [&](size_t ranks) {
    std::vector<const void*> sources;
    for (size_t i = 0; i < ranks; ++i) sources.push_back(&from[i]);
    const ReduceRun run{sources, &to, 1};
    const auto launches = launches_of([&](Stream& stream) {
      reduce(stream, {&run, 1}, ReduceOp::kSum);
    });
    REQUIRE(launches.size() == 1);
    CHECK(to == static_cast<float>(ranks));
    return launches[0].kernel;
  };
  CHECK(kernel_for(128) == kernel_for(2));
  CHECK(kernel_for(129) != kernel_for(2));
}

constexpr int64_t kNumel = 4096;

// Arrays of floats that begin `misaligned` elements after a boundary of 16 bytes.
struct Arrays {
  explicit Arrays(int64_t misaligned) {
    for (int64_t& each : at) each = arena.floats(kNumel, misaligned * 4, /*positive=*/true);
    placed = arena.placed();
  }
  float* array(int i) { return reinterpret_cast<float*>(placed.base() + at[i]); }

  test::Arena arena;
  int64_t at[5] = {};
  test::Arena placed;
};

struct Accesses {
  uint64_t loads, stores;
  bool operator==(const Accesses&) const = default;
};

Accesses accesses_of(Arrays& arrays, const std::function<void(Stream&, Arrays&)>& call) {
  Accesses sum{0, 0};
  for (const LaunchRecord& each : launches_of([&](Stream& stream) { call(stream, arrays); })) {
    sum.loads += each.report.loads;
    sum.stores += each.report.stores;
  }
  return sum;
}

// Checks the accesses to the arrays of floats that are read and written. If all arrays are aligned,
// four elements are accessed at a time. Otherwise each element is accessed singly.
void check_width(uint64_t read, uint64_t written,
                 const std::function<void(Stream&, Arrays&)>& call) {
  constexpr uint64_t kEach = kNumel;
  Arrays aligned(0);
  CHECK(accesses_of(aligned, call) == Accesses{read * kEach / 4, written * kEach / 4});
  Arrays apart(0);
  apart.at[1] += 4;
  CHECK(accesses_of(apart, call) == Accesses{read * kEach, written * kEach});
}

TEST_CASE("arrays that begin at the same distance from a boundary are touched 16 bytes at a time") {
  check_width(1, 1, [](Stream& stream, Arrays& arrays) {
    const CastRun run{arrays.array(0), arrays.array(1), kNumel};
    cast_pack(stream, {&run, 1}, 0.5F);
  });
  check_width(2, 1, [](Stream& stream, Arrays& arrays) {
    const AccumulateRun run{arrays.array(0), arrays.array(1), kNumel};
    accumulate(stream, {&run, 1});
  });
  check_width(3, 1, [](Stream& stream, Arrays& arrays) {
    const std::vector<const void*> sources{arrays.array(0), arrays.array(1), arrays.array(2)};
    const ReduceRun run{sources, arrays.array(0), kNumel};
    reduce(stream, {&run, 1}, ReduceOp::kSum);
  });
  check_width(4, 3, [](Stream& stream, Arrays& arrays) {
    const UpdateSegment segment{.param = arrays.array(0),
                                .grad = arrays.array(1),
                                .moments = {arrays.array(2), arrays.array(3)},
                                .numel = kNumel};
    update(stream, {&segment, 1}, AdamW{});
  });
  check_width(2, 1, [](Stream& stream, Arrays& arrays) {
    const UpdateSegment segment{.param = arrays.array(0), .grad = arrays.array(1), .numel = kNumel};
    update(stream, {&segment, 1}, Sgd{});
  });
  Arrays arrays(0);
  const FillRun run{arrays.array(0), kNumel};
  CHECK(accesses_of(arrays, [&](Stream& stream, Arrays&) {
          fill_zero(stream, {&run, 1});
        }) == Accesses{0, kNumel / 4});
  // All arrays have the same distance from a boundary. So only elements before the first boundary
  // and after the last one are accessed singly.
  Arrays skewed(3);
  const CastRun copy{skewed.array(0), skewed.array(1), kNumel};
  CHECK(accesses_of(skewed, [&](Stream& stream, Arrays&) {
          cast_pack(stream, {&copy, 1});
        }) == Accesses{1 + (kNumel - 4) / 4 + 3, 1 + (kNumel - 4) / 4 + 3});
}

TEST_CASE("a digest is read by many blocks, a part each, and by no more than there are parts") {
  const auto blocks_for = [](size_t numel) {
    const std::vector<uint64_t> words(numel, 7);
    std::vector<uint64_t> parts(kDigestParts);
    uint64_t on_gpu = 0, on_cpu = 0;
    DigestRun run{words.data(), static_cast<int64_t>(numel * 8), &on_gpu, parts.data()};
    const auto launches = launches_of([&](Stream& stream) { digest(stream, {&run, 1}); });
    REQUIRE(launches.size() == 2);
    CHECK(launches[0].kernel == "digest_kernel<16>");
    CHECK(launches[1].report.stores == 1);
    run.digest = &on_cpu;
    digest(*cpu_device().make_stream({.name = "host", .runs_beside = false}), {&run, 1});
    CHECK(on_gpu == on_cpu);
    return static_cast<int64_t>(launches[0].report.stores);
  };
  CHECK(blocks_for(3 * 4096) == 3);
  CHECK(blocks_for(kDigestParts * 4096 + 5000) == kDigestParts);
}

}  // namespace
}  // namespace fsdp::kernels
