#include "comm/local/local_communicator.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <numeric>

#include "comm/mesh_state.h"
#include "comm/support/collective_sweep.h"
#include "fsdp/error.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

using testing::SweepCase;

// A sanitized build is ten times slower. It tests all cases with smaller sizes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kLarge = (1 << 14) + 1;
#else
constexpr int64_t kLarge = (1 << 20) + 1;
#endif

void sweep_threads(int world, const SweepCase& sweep_case) {
  testing::run_ranks(world, [&](const Mesh& mesh) {
    const auto wrong = testing::sweep(state_of(mesh).gather_communicator(Axis::kShard), sweep_case);
    for (const std::string& line : wrong) FAIL_CHECK(line);
  });
}

TEST_CASE("every collective gives exact values on thread ranks, for every dtype and size") {
  for (const int world : {1, 2, 3, 4, 7}) {
    for (const SweepCase& sweep_case : testing::all_cases(kLarge)) {
      CAPTURE(world);
      sweep_threads(world, sweep_case);
    }
  }
}

TEST_CASE("128 thread ranks meet") { sweep_threads(128, {.numel = 67, .in_place = true}); }

TEST_CASE("parts of different dtypes and sizes travel as one collective") {
  for (const int world : {1, 2, 3, 5}) {
    testing::run_ranks(world, [&](const Mesh& mesh) {
      const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "parts");
      Communicator& communicator = state_of(mesh).reduce_communicator(Axis::kShard);
      const int rank = mesh.rank();
      std::vector<float> weights(101, static_cast<float>(rank));
      std::vector<int64_t> counts(3, rank + 1);
      std::vector<float> all_weights(weights.size() * world);
      std::vector<int64_t> all_counts(counts.size() * world);
      const std::array<CollectivePart, 3> parts{
          CollectivePart{weights.data(), all_weights.data(), 101, DType::kFloat32},
          CollectivePart{nullptr, nullptr, 0, DType::kUInt8},
          CollectivePart{counts.data(), all_counts.data(), 3, DType::kInt64}};
      communicator.all_gather(parts, {.sequence = 1, .label = "unit"}, *stream);
      stream->synchronize();
      for (int r = 0; r < world; ++r) {
        CHECK(all_weights[r * 101 + 100] == static_cast<float>(r));
        CHECK(all_counts[r * 3 + 2] == r + 1);
      }
    });
  }
}

TEST_CASE("more parts than one meeting takes are all moved") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "parts");
    constexpr int kParts = 2 * kMaxParts + 5;
    std::vector<std::vector<double>> values(kParts);
    std::vector<CollectivePart> parts;
    for (int i = 0; i < kParts; ++i) {
      values[i].assign(i + 1, mesh.rank() + i);
      parts.push_back({values[i].data(), values[i].data(), i + 1, DType::kFloat64});
    }
    state_of(mesh)
        .reduce_communicator(Axis::kShard)
        .all_reduce(parts, ReduceOp::kSum, {.sequence = 1, .label = "many"}, *stream);
    for (int i = 0; i < kParts; ++i) CHECK(values[i].back() == 3 * i + 3);
  });
}

TEST_CASE("gather, reduce and control communicators may be used at the same time") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const auto gathers = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "gathers");
    const auto reduces = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "reduces");
    std::vector<int32_t> gathered(3 * 400);
    std::vector<int32_t> mine(400, mesh.rank());
    std::vector<int64_t> sums(400, 1);
    const CollectivePart gather{mine.data(), gathered.data(), 400, DType::kInt32};
    const CollectivePart reduce{sums.data(), sums.data(), 400, DType::kInt64};
    // The two ranks issue the work of their two streams in opposite order. So the work of one
    // stream must not queue behind the work of the other.
    for (int i = 0; i < 20; ++i) {
      const auto issue_gather = [&] {
        state_of(mesh)
            .gather_communicator(Axis::kShard)
            .all_gather({&gather, 1}, {.label = "g"}, *gathers);
      };
      if (mesh.rank() != 1) issue_gather();
      state_of(mesh)
          .reduce_communicator(Axis::kShard)
          .all_reduce({&reduce, 1}, ReduceOp::kSum, {.label = "r"}, *reduces);
      if (mesh.rank() == 1) issue_gather();
    }
    mesh.agree("side", {"same"});
    gathers->synchronize();
    reduces->synchronize();
    CHECK(gathered[2 * 400 + 399] == 2);
    CHECK(sums[399] == 3486784401);  // 3^20
  });
}

TEST_CASE("one rank moves nothing that is in place and copies what is not") {
  const Mesh mesh = Mesh::single();
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "one");
  std::array<float, 3> from{1.5F, -2, 0.1F};
  std::array<float, 3> to{};
  const CollectivePart part{from.data(), to.data(), 3, DType::kFloat32};
  state_of(mesh)
      .reduce_communicator(Axis::kShard)
      .all_reduce({&part, 1}, ReduceOp::kAvg, {.label = "x"}, *stream);
  CHECK(to == from);
  CHECK(mesh.world_size() == 1);
  CHECK(mesh.size(Axis::kReplicate) == 1);
  CHECK(state_of(mesh).gather_communicator(Axis::kReplicate).size() == 1);
}

}  // namespace
}  // namespace fsdp
