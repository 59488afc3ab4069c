// Tests the end of ranks: collectives that hang one after another, and ranks that end late.
#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/mesh_state.h"
#include "nccl/support/nccl_ranks.h"
#include "runtime/device.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;
using std::chrono::milliseconds;

namespace {

// Ends the process of the test, as the library ends a program's process.
void end_the_test(const Failure& failure) {
  const CommError error(failure.text, failure.code);
  std::fprintf(stderr, "rank %d is stuck: %s\n", failure.rank, error.what());
  std::_Exit(static_cast<int>(failure.code));
}

// Makes two collectives hang, as in a step. A gather waits for a slot, and compute releases the
// slot after a reduction.
struct TwoThatHang {
  explicit TwoThatHang(const NcclRank& rank)
      : memory(rank.device.allocate(4096, MemoryKind::kDevice)),
        gathers(rank.device.make_stream({.name = "gather"})),
        reduces(rank.device.make_stream({.name = "reduce"})),
        reduce(rank.make("reduce")),
        gather(rank.make("gather")) {}

  void issue(const NcclRank& rank) {
    const CollectivePart sum{memory.at(0), memory.at(0), 16, DType::kFloat32};
    const CollectivePart part{memory.at(1024), memory.at(2048), 16, DType::kFloat32};
    reduce->all_reduce({&sum, 1}, ReduceOp::kSum, {.sequence = 7, .label = "layers.3"}, *reduces);
    Event reduced(rank.device);
    reduces->record(reduced);
    gathers->wait(reduced);
    gather->all_gather({&part, 1}, {.sequence = 8, .label = "layers.1"}, *gathers);
  }

  const Buffer memory;
  const std::unique_ptr<Stream> gathers, reduces;
  // Members are destroyed in reverse order. So the gather's communicator ends first, while its
  // collective waits for the reduction.
  const std::unique_ptr<Communicator> reduce, gather;
};

}  // namespace

TEST_CASE("communicators whose collectives hang behind each other are aborted by all ranks") {
  NcclMachine machine(2, {.timeout = milliseconds(600), .on_stuck = end_the_test});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    TwoThatHang both(rank);
    rank.meet("made");
    machine.nccl().hang_collectives();
    both.issue(rank);
    std::string told;
    try {
      both.gathers->synchronize();
    } catch (const Error& error) {
      told = error.what();
    }
    CAPTURE(told);
    CHECK(contains(told, "NCCL did not finish within 0.6 s"));
  });
}

TEST_CASE("an end that finds collectives hanging behind each other aborts all communicators") {
  NcclMachine machine(2, {.timeout = milliseconds(600),
                          .looks_every = milliseconds(60'000),
                          .on_stuck = end_the_test});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    TwoThatHang both(rank);
    rank.meet("made");
    machine.nccl().hang_collectives();
    both.issue(rank);
  });
}

TEST_CASE("a rank that ends later than the others is no failure of theirs") {
  constexpr auto kTimeout = milliseconds(400);
  NcclMachine machine(2, {.timeout = kTimeout, .on_stuck = end_the_test});
  run_on_gpus(2, machine, [&](const Mesh& mesh) {
    mesh.agree("trained", {});
    if (mesh.rank() == 1) return;
    while (machine.nccl().calls("ncclCommDestroy", 1) == 0) std::this_thread::yield();
    std::this_thread::sleep_for(kTimeout);  // for example, it saves a checkpoint
  });
  CHECK(machine.nccl().calls("ncclCommAbort") == 0);
}

TEST_CASE(
    "a rank whose mesh ends is the cause for those that need it, long before the time is over") {
  for (const bool throws : {false, true}) {
    CAPTURE(throws);
    NcclMachine machine(2, {.timeout = std::chrono::minutes(5)});
    const std::vector<std::string> told = run_on_gpus(2, machine, [&](const Mesh& mesh) {
      mesh.agree("trained", {});
      if (mesh.rank() == 1 && throws) throw StateError({.what = "a mistake"});
      if (mesh.rank() == 1) return;
      const Device& device = state_of(mesh).device();
      const auto stream = device.make_stream({.name = "gather"});
      const Buffer memory = device.allocate(1024, MemoryKind::kDevice);
      const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
      state_of(mesh)
          .gather_communicator(Axis::kWorld)
          .all_gather({&part, 1}, {.sequence = 7, .label = "layers.3"}, *stream);
      stream->synchronize();
    });
    CAPTURE(told[0]);
    CHECK(
        contains(told[0], throws ? "rank 1 gave up" : "rank 1 left while other ranks still need"));
    CHECK((throws || contains(told[0], "all_gather of 16 float32 'layers.3' #7")));
  }
}
