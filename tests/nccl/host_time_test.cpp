// Tests how much time NCCL costs the thread that launches compute, by the simulated host's clock.
#include <doctest/doctest.h>

#include <chrono>

#include "nccl/support/nccl_ranks.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("a collective costs its rank's thread at most 40 us") {
  constexpr int kCollectives = 20;
  NcclMachine machine(2, {.most_questions = 0,
                          .looks_every = std::chrono::milliseconds(60'000),
                          .host_costs = sim::kUsualHost});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto stream = rank.device.make_stream({.name = "gather"});
    const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
    const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
    rank.meet("made");
    const uint64_t begin = machine.gpu().host_ns();
    for (uint64_t place = 1; place <= kCollectives; ++place) {
      communicator->all_gather({&part, 1}, {.sequence = place, .label = "layers.3"}, *stream);
    }
    const double us_each =
        static_cast<double>(machine.gpu().host_ns() - begin) / 1e3 / kCollectives;
    MESSAGE("a collective costs " << us_each << " us");
    CHECK(us_each >= 25);  // time of NCCL itself
    CHECK(us_each <= 40);
    stream->synchronize();
    rank.meet("end");
  });
}
