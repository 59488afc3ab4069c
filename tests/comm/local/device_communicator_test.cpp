// Tests the algorithm for ranks that share one device, on the CPU. tests/gpu runs the algorithm on
// a simulated GPU.
#include "comm/local/device_communicator.h"

#include <doctest/doctest.h>

#include <numeric>
#include <thread>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/support/collective_sweep.h"
#include "comm/support/reduction_bits.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

using testing::SweepCase;

std::vector<testing::WatchedRank> on_one_device(int world, const MeshOptions& options) {
  std::vector<testing::WatchedRank> ranks;
  for (MeshParts& parts : local_mesh(world, options, &cpu_device())) {
    ranks.push_back({nullptr, mesh_of(std::move(parts))});
  }
  return ranks;
}

testing::RunRanksOptions device_ranks() { return {.make = on_one_device}; }

TEST_CASE("every collective gives exact values on ranks of one device, for every dtype and size") {
  for (const int world : {1, 2, 3, 4, 7}) {
    for (const SweepCase& sweep_case : testing::all_cases((1 << 14) + 1)) {
      CAPTURE(world);
      testing::run_ranks(
          world,
          [&](const Mesh& mesh) {
            const auto wrong =
                testing::sweep(state_of(mesh).gather_communicator(Axis::kShard), sweep_case);
            for (const std::string& line : wrong) FAIL_CHECK(line);
          },
          device_ranks());
    }
  }
}

TEST_CASE("ranks of one device give the bits of ranks on the CPU") {
  for (const int64_t numel : {1, 63, 64, 1000, 20'000}) {
    std::vector<std::string> bits(2);
    for (const bool on_device : {false, true}) {
      testing::run_ranks(
          3,
          [&](const Mesh& mesh) {
            const std::string own =
                testing::reduction_bits(state_of(mesh).reduce_communicator(Axis::kShard), numel);
            if (mesh.rank() == 0) bits[on_device ? 1 : 0] = own;
          },
          on_device ? device_ranks() : testing::RunRanksOptions{});
    }
    CHECK(bits[0] == bits[1]);
    CHECK(!bits[0].empty());
  }
}

TEST_CASE("a rank that comes late to a collective holds back who needs it, and nobody else") {
  testing::run_ranks(
      2,
      [](const Mesh& mesh) {
        const auto gathers = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "gathers");
        std::vector<float> all(2, -1.0F);
        float mine = static_cast<float>(mesh.rank());
        if (mesh.rank() == 1) {
          cpu_stream(*gathers).run([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            mine = 7.0F;
          });
        }
        const CollectivePart part{&mine, all.data(), 1, DType::kFloat32};
        state_of(mesh)
            .gather_communicator(Axis::kShard)
            .all_gather({&part, 1}, {.label = "late"}, *gathers);
        gathers->synchronize();
        CHECK(all == std::vector<float>{0.0F, 7.0F});
      },
      device_ranks());
}

TEST_CASE("what is sent is not written before every rank has read it") {
  testing::run_ranks(
      3,
      [](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "gathers");
        std::vector<int64_t> mine(1000), all(3000);
        const CollectivePart part{mine.data(), all.data(), 1000, DType::kInt64};
        for (int64_t turn = 0; turn < 50; ++turn) {
          cpu_stream(*stream).run([&, turn] {
            std::iota(mine.begin(), mine.end(), turn * 10'000 + mesh.rank() * 1000);
          });
          state_of(mesh)
              .gather_communicator(Axis::kShard)
              .all_gather({&part, 1}, {.label = "turn"}, *stream);
          cpu_stream(*stream).run([&, turn] {
            for (int64_t i = 0; i < 3000; i += 499) CHECK(all[i] == turn * 10'000 + i);
          });
        }
        stream->synchronize();
      },
      device_ranks());
}

TEST_CASE("groups that a communicator of one device is split into meet by themselves") {
  testing::run_ranks(
      5,
      [](const Mesh& mesh) {
        Communicator& whole = state_of(mesh).gather_communicator(Axis::kShard);
        const auto group = whole.split(mesh.rank() % 2, -mesh.rank());
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "group");
        int64_t sum = mesh.rank();
        const CollectivePart part{&sum, &sum, 1, DType::kInt64};
        group->all_reduce({&part, 1}, ReduceOp::kSum, {.label = "sum"}, *stream);
        CHECK(sum == (mesh.rank() % 2 == 0 ? 0 + 2 + 4 : 1 + 3));
        CHECK(group->rank() == (4 - mesh.rank()) / 2);
        const auto wrong = testing::sweep(*group, {.numel = 97});
        for (const std::string& line : wrong) FAIL_CHECK(line);
      },
      device_ranks());
}

TEST_CASE("ranks of one device that disagree end with an error that names both sides") {
  const auto errors = testing::errors_of_ranks(
      2,
      [](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        std::vector<float> values(40);
        const CollectivePart part{values.data(), values.data(), 10 + mesh.rank(), DType::kFloat32};
        state_of(mesh)
            .reduce_communicator(Axis::kShard)
            .all_reduce({&part, 1}, ReduceOp::kSum, {.sequence = 3, .label = "norm"}, *stream);
      },
      device_ranks());
  for (const std::string& error : errors) {
    CHECK(error.find("rank 0 issued all_reduce (sum) of 10 float32 'norm' #3, rank 1 issued "
                     "all_reduce (sum) of 11 float32 'norm' #3") != std::string::npos);
  }
}

TEST_CASE("a rank of one device that does not come is named when the time is over") {
  testing::RunRanksOptions options = device_ranks();
  options.mesh.timeout = std::chrono::milliseconds(300);
  const auto errors = testing::errors_of_ranks(
      2,
      [](const Mesh& mesh) {
        if (mesh.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(1));
          return;
        }
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        state_of(mesh).gather_communicator(Axis::kShard).barrier({.label = "alone"}, *stream);
      },
      options);
  CHECK(errors[0].find("rank 1") != std::string::npos);
}

}  // namespace
}  // namespace fsdp
