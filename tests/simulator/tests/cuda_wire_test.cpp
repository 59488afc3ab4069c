// Tests thread ranks that share one simulated GPU on a slower link. It checks the time of each
// collective to the nanosecond. This works because time is virtual (ptx/launch.h) and only the link
// takes time.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "kernels/cuda/kernels.h"
#include "kernels/fill.h"
#include "kernels/pause.h"
#include "runtime/cuda/cuda_device.h"
#include "simulator/checked_mesh.h"
#include "simulator/cuda/simulated_gpu.h"
#include "support/run_ranks.h"
#include "support/wire/wire_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

constexpr int64_t kLatency = 7000;                  // ns
constexpr double kRate = 0.25;                      // GB/s: 4 ns a byte
constexpr int64_t kPiece = 240, kAll = 4 * kPiece;  // floats

// A rank's stream, with memory for collectives and a clock.
class TimedStream {
 public:
  TimedStream(const Mesh& mesh, const char* name)
      : device_(state_of(mesh).device()),
        stream_(device_.make_stream({.name = name})),
        memory_(device_.allocate(2 * kAll * 4, MemoryKind::kDevice)),
        times_(device_.allocate(3 * 8, MemoryKind::kDevice)) {}

  Stream& stream() { return *stream_; }
  // Returns a collective's part for a tensor of `numel` floats, which the ranks share.
  CollectivePart part(int64_t numel) const {
    return {memory_.at(0), memory_.at(kAll * 4), numel, DType::kFloat32};
  }
  void mark(int at) { kernels::mark_time(*stream_, time(at)); }
  // Keeps the stream busy for `ns` nanoseconds.
  void work(int64_t ns) {
    mark(2);
    kernels::pause_since(*stream_, {time(2), 1}, ns);
  }
  int64_t marked(int at) {
    int64_t ns = 0;
    stream_->read(&ns, time(at), 8);
    return ns;
  }
  // Returns the duration of the work that `issue` issues to the stream.
  template <class Issue>
  int64_t duration_of(Issue issue) {
    mark(0);
    issue();
    mark(1);
    return marked(1) - marked(0);
  }

 private:
  int64_t* time(int at) const { return static_cast<int64_t*>(times_.data()) + at; }

  const Device& device_;
  const std::unique_ptr<Stream> stream_;
  const Buffer memory_, times_;
};

using Body = std::function<void(const Mesh& mesh)>;

void on_wire(int world, const SimulationOptions& simulation, const Wire& wire, const Body& body) {
  SimulatedGpu gpu(simulation);
  {
    const CudaDevice device(0, kernels::cuda::kernel_table());
    run_ranks(world, body, {.make = [&](int size, const MeshOptions& options) {
                std::vector<WatchedRank> ranks;
                std::vector<MeshParts> all = local_mesh(size, options, &device);
                put_on_wire(all, wire);
                for (MeshParts& parts : all) {
                  ranks.push_back({nullptr, mesh_of(std::move(parts))});
                }
                return ranks;
              }});
  }
  for (const std::string& report : gpu.take_reports()) FAIL_CHECK(report);
}

const Wire kWire{.gigabytes_per_second = kRate, .latency = std::chrono::microseconds(7)};

}  // namespace

TEST_CASE("a collective on a wire takes the latency and its bytes, in every schedule") {
  for (const Schedule schedule : kAllSchedules) {
    for (const int world : {1, 2, 3, 4}) {
      on_wire(world, {.seed = 5, .schedule = schedule}, kWire, [world](const Mesh& mesh) {
        Communicator& communicator = state_of(mesh).gather_communicator(Axis::kShard);
        TimedStream timed(mesh, "timed");
        Stream& stream = timed.stream();
        const int64_t wired = world == 1 ? 0 : 1;
        const CollectivePart piece = timed.part(kAll / world), whole = timed.part(kAll);
        const int64_t bytes = kAll * 4 / world * (world - 1);  // (n - 1) / n of the tensor's bytes
        for (int turn = 0; turn < 3; ++turn) {
          CHECK(timed.duration_of([&] {
            communicator.all_gather({&piece, 1}, {.label = "g"}, stream);
          }) == wired * kLatency + 4 * bytes);
          CHECK(timed.duration_of([&] {
            communicator.reduce_scatter({&piece, 1}, ReduceOp::kSum, {.label = "r"}, stream);
          }) == wired * kLatency + 4 * bytes);
          CHECK(timed.duration_of([&] {
            communicator.all_reduce({&whole, 1}, ReduceOp::kMax, {.label = "a"}, stream);
          }) == wired * kLatency + 8 * bytes);
          CHECK(timed.duration_of([&] {
            communicator.broadcast({&whole, 1}, world - 1, {.label = "b"}, stream);
          }) == wired * (kLatency + 4 * kAll * 4));
          CHECK(timed.duration_of([&] { communicator.barrier({.label = "m"}, stream); }) ==
                wired * kLatency);
        }
      });
    }
  }
}

TEST_CASE("a rate alone and a latency alone hold back alone, and without a wire nothing does") {
  const auto duration_on = [](const Wire& wire) {
    int64_t duration = -1;
    on_wire(2, {.seed = 2}, wire, [&](const Mesh& mesh) {
      TimedStream timed(mesh, "timed");
      const CollectivePart part = timed.part(kPiece);
      const int64_t taken = timed.duration_of([&] {
        state_of(mesh)
            .reduce_communicator(Axis::kShard)
            .broadcast({&part, 1}, 0, {.label = "b"}, timed.stream());
      });
      if (mesh.rank() == 0) duration = taken;
    });
    return duration;
  };
  CHECK(duration_on({.gigabytes_per_second = kRate}) == 4 * kPiece * 4);
  CHECK(duration_on({.latency = std::chrono::microseconds(7)}) == kLatency);
  CHECK(duration_on({}) == 0);
}

TEST_CASE("a wire's time counts from when the last rank's stream came") {
  constexpr int64_t kLate = 5'000'000;
  for (const uint32_t seed : {1U, 2U, 3U}) {
    on_wire(3, {.seed = seed}, kWire, [](const Mesh& mesh) {
      TimedStream timed(mesh, "timed");
      Communicator& communicator = state_of(mesh).gather_communicator(Axis::kShard);
      for (int turn = 1; turn < 4; ++turn) {  // another rank is late in each turn
        const CollectivePart part = timed.part(kPiece);
        const int64_t late = mesh.rank() == turn % 3 ? kLate : 0;
        const int64_t duration = timed.duration_of([&] {
          timed.work(late);
          communicator.all_gather({&part, 1}, {.label = "g"}, timed.stream());
        });
        CHECK(duration == kLate + kLatency + 4 * 2 * kPiece * 4);
      }
    });
  }
}

TEST_CASE(
    "what the memory takes is part of the wire's time, and gathers and reductions share none") {
  on_wire(2, {.seed = 4}, kWire, [](const Mesh& mesh) {
    TimedStream gathers(mesh, "gathers"), reduces(mesh, "reduces");
    const CollectivePart gather = gathers.part(kPiece), reduce = reduces.part(2 * kPiece);
    gathers.mark(0);
    reduces.mark(0);
    for (int turn = 0; turn < 3; ++turn) {
      state_of(mesh)
          .gather_communicator(Axis::kShard)
          .all_gather({&gather, 1}, {.label = "g"}, gathers.stream());
      state_of(mesh)
          .reduce_communicator(Axis::kShard)
          .reduce_scatter({&reduce, 1}, ReduceOp::kAvg, {.label = "r"}, reduces.stream());
    }
    gathers.mark(1);
    reduces.mark(1);
    CHECK(gathers.marked(1) - gathers.marked(0) == 3 * (kLatency + 4 * kPiece * 4));
    CHECK(reduces.marked(1) - reduces.marked(0) == 3 * (kLatency + 8 * kPiece * 4));
  });
}

TEST_CASE("a group that was split off has its own size on the wire, and alone none") {
  on_wire(3, {.seed = 6}, kWire, [](const Mesh& mesh) {
    TimedStream timed(mesh, "timed");
    const auto group =
        state_of(mesh).gather_communicator(Axis::kShard).split(mesh.rank() == 1 ? 1 : 0, 0);
    const CollectivePart part = timed.part(kPiece);
    CHECK(timed.duration_of([&] {
      group->all_gather({&part, 1}, {.label = "g"}, timed.stream());
    }) == (mesh.rank() == 1 ? 0 : kLatency + 4 * kPiece * 4));
  });
}

TEST_CASE("ranks of the checked device, whose kernels tell what they touch, gather on a wire") {
  std::vector<std::unique_ptr<CheckedDevice>> devices;
  run_ranks(2,
            [](const Mesh& mesh) {
              const Device& device = state_of(mesh).device();
              const auto stream = device.make_stream({.name = "gather"});
              const Buffer all = device.allocate(2 * 64, MemoryKind::kDevice);
              const CollectivePart part{all.at(mesh.rank() * 64), all.data(), 64, DType::kUInt8};
              const kernels::FillRun mine{all.at(mesh.rank() * 64), 16, DType::kFloat32};
              kernels::fill_nan(*stream, {&mine, 1});
              state_of(mesh)
                  .gather_communicator(Axis::kShard)
                  .all_gather({&part, 1}, {.label = "g"}, *stream);
              std::array<float, 32> gathered{};
              stream->read(gathered.data(), all.data(), 2 * 64);
              for (const float each : gathered) CHECK(each != each);
            },
            {.make = [&](int world, const MeshOptions& options) {
              std::vector<WatchedRank> ranks;
              std::vector<MeshParts> all = local_mesh(world, options);
              put_on_wire(all, {.latency = std::chrono::microseconds(1)});
              for (CheckedRank& rank : checked_ranks(std::move(all))) {
                devices.push_back(std::move(rank.device));
                ranks.push_back({nullptr, std::move(rank.mesh)});
              }
              return ranks;
            }});
  for (const auto& device : devices) CHECK(device->check().found().empty());
}
