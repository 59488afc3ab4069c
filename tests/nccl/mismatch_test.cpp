// Tests ranks that are about to issue different collectives. They must get an error before NCCL
// runs any of them.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh_state.h"
#include "nccl/support/nccl_ranks.h"
#include "runtime/stream.h"
#include "support/mismatch_text.h"
#include "support/store_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Side {
  Operation operation = Operation::kAllReduce;
  int64_t numel = 300;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::string_view label = "layers.1";
  int parts = 1;
};

void issue(Communicator& communicator, const Side& side, const Buffer& memory, Stream& stream) {
  const std::vector<CollectivePart> parts(static_cast<size_t>(side.parts),
                                          {memory.at(0), memory.at(8192), side.numel, side.dtype});
  const CollectiveTag tag{.sequence = 7, .label = side.label};
  if (side.operation == Operation::kAllReduce) {
    communicator.all_reduce(parts, side.op, tag, stream);
  } else if (side.operation == Operation::kAllGather) {
    communicator.all_gather(parts, tag, stream);
  } else if (side.operation == Operation::kBroadcast) {
    communicator.broadcast(parts, side.root, tag, stream);
  } else {
    communicator.barrier(tag, stream);
  }
  stream.synchronize();
}

// Checks that all ranks get the same text if rank `odd` of three issues `theirs` and the others
// issue `ours`.
void expect_disagreement(const Side& ours, const Side& theirs, const std::string& we,
                         const std::string& they) {
  for (const int odd : {0, 1, 2}) {
    CAPTURE(odd);
    NcclMachine machine(3, {.seed = static_cast<uint32_t>(odd + 1)});
    std::vector<std::string> told(3);
    run_nccl_ranks(3, machine, [&](const NcclRank& rank) {
      const auto stream = rank.device.make_stream({.name = "reduce"});
      const Buffer memory = rank.device.allocate(16384, MemoryKind::kDevice);
      try {
        const auto communicator = rank.make("reduce");
        issue(*communicator, rank.mesh.rank() == odd ? theirs : ours, memory, *stream);
      } catch (const CommError& error) {
        told[static_cast<size_t>(rank.mesh.rank())] = error.what();
      }
    });
    CAPTURE(told[0]);
    CHECK(told[0].starts_with(kDisagree + "rank "));
    CHECK(contains(told[0], fmt::format("rank {} issued {}", odd, they)));
    CHECK((contains(told[0], fmt::format("rank {} issued {}", (odd + 1) % 3, we)) ||
           contains(told[0], fmt::format("rank {} issued {}", (odd + 2) % 3, we))));
    CHECK(contains(told[0], "(collective #7)"));
    CHECK(told[1] == told[0]);
    CHECK(told[2] == told[0]);
    CHECK(machine.gpu().take_reports().empty());
  }
}

}  // namespace

TEST_CASE("ranks that would send different things are told so before NCCL is, both sides named") {
  const std::string sum = "all_reduce (sum) of 300 float32 'layers.1' #7";
  expect_disagreement({}, {.operation = Operation::kBarrier}, sum, "barrier 'layers.1' #7");
  expect_disagreement({}, {.operation = Operation::kAllGather}, sum,
                      "all_gather of 300 float32 'layers.1' #7");
  expect_disagreement({}, {.numel = 301}, sum, "all_reduce (sum) of 301 float32 'layers.1' #7");
  expect_disagreement({}, {.dtype = DType::kInt32}, sum,
                      "all_reduce (sum) of 300 int32 'layers.1' #7");
  expect_disagreement({}, {.op = ReduceOp::kMax}, sum,
                      "all_reduce (max) of 300 float32 'layers.1' #7");
  expect_disagreement({}, {.label = "layers.2"}, sum,
                      "all_reduce (sum) of 300 float32 'layers.2' #7");
  expect_disagreement({}, {.numel = 150, .parts = 2}, sum,
                      "all_reduce (sum) of 150 float32 + 150 float32 'layers.1' #7");
  expect_disagreement({.operation = Operation::kBroadcast},
                      {.operation = Operation::kBroadcast, .root = 1},
                      "broadcast from rank 0 of 300 float32 'layers.1' #7",
                      "broadcast from rank 1 of 300 float32 'layers.1' #7");
}

TEST_CASE("a rank that meets the others on the host while they send is told so, both sides named") {
  for (const int odd : {0, 2}) {
    CAPTURE(odd);
    NcclMachine machine(3, {.seed = static_cast<uint32_t>(odd + 1)});
    std::vector<std::string> told(3);
    run_nccl_ranks(3, machine, [&](const NcclRank& rank) {
      const auto stream = rank.device.make_stream({.name = "gather"});
      try {
        const auto gather = rank.make("gather");
        if (rank.mesh.rank() == odd) rank.mesh.mean(0.5, "loss");
        gather->barrier(state_of(rank.mesh).order().next(Operation::kBarrier, 0, "u0"), *stream);
        stream->synchronize();
        if (rank.mesh.rank() != odd) rank.mesh.mean(0.5, "loss");
      } catch (const CommError& error) {
        told[static_cast<size_t>(rank.mesh.rank())] = error.what();
      }
    });
    CAPTURE(told[0]);
    CHECK(told[0].starts_with(kDisagree + "rank "));
    CHECK(contains(told[0],
                   fmt::format("rank {} issued all_reduce (sum) of 1 float64 'loss' #1", odd)));
    CHECK(contains(told[0], "issued barrier 'u0' #1"));
    CHECK(contains(told[0], "(collective #1, on different communicators)"));
    CHECK(told[1] == told[0]);
    CHECK(told[2] == told[0]);
    CHECK(machine.gpu().take_reports().empty());
  }
}

TEST_CASE("on several hosts ranks that differ are told so once it is late, both sides named") {
  for (const int odd : {0, 3}) {
    CAPTURE(odd);
    const auto timeout = std::chrono::milliseconds(600);
    NcclMachine machine(4, {.timeout = timeout});
    MemoryStore store;
    const auto told = run_at_store(store, 4, {.timeout = timeout}, [&](MeshParts& parts) {
      const int own = parts.control_plane->rank();
      const CudaDevice& device = machine.device(own);
      device.make_current();
      const auto gather =
          make_nccl_communicator(machine.session(*parts.control_plane), "gather", {0, 1, 2, 3});
      const auto stream = device.make_stream({.name = "gather"});
      machine.nccl().hang_collectives();  // the result of these collectives is undefined
      gather->barrier({.sequence = 1, .label = own == odd ? "odd" : "even"}, *stream);
      stream->synchronize();
    });
    for (const std::string& each : told) {
      CAPTURE(each);
      CHECK(each.starts_with(kDisagree + "rank "));
      CHECK(contains(each, fmt::format("rank {} issued barrier 'odd' #1", odd)));
      CHECK(contains(each, "issued barrier 'even' #1"));
      CHECK(contains(each, "(collective #1)"));
    }
    CHECK(machine.gpu().take_reports().empty());
  }
}
