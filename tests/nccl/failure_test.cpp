// Tests that the job ends if an NCCL collective does not end or fails.
#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "nccl/support/nccl_ranks.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;
using fsdp::nccl::Result;

namespace {

// Issues one all_gather and waits for it.
void gather(const NcclRank& rank, Communicator& communicator) {
  const auto stream = rank.device.make_stream({.name = "gather"});
  const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
  const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
  communicator.all_gather({&part, 1}, {.sequence = 7, .label = "layers.3"}, *stream);
  stream->synchronize();
}

// Runs the body and returns the error text of the rank.
template <class Body>
std::string told_in(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string gather_and_wait(const NcclRank& rank, Communicator& communicator) {
  return told_in([&] { gather(rank, communicator); });
}

}  // namespace

TEST_CASE("a collective that does not end is left when its time is over, by all ranks") {
  NcclMachine machine(3, {.timeout = std::chrono::milliseconds(200)});
  run_nccl_ranks(3, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    machine.nccl().hang_collectives();
    const std::string told = gather_and_wait(rank, *communicator);
    CAPTURE(told);
    CHECK(contains(told, "NCCL did not finish within 0.2 s"));
    CHECK(contains(told, "all_gather of 16 float32 'layers.3' #7"));
    CHECK(!gather_and_wait(rank, *communicator).empty());  // no later collective runs
  });
  CHECK(machine.nccl().calls("ncclCommAbort") == 3);
  CHECK(machine.gpu().take_reports().empty());
}

// Collectives end faster than the watchdog checks. So one check must drop all collectives that have
// ended.
TEST_CASE("a collective that does not end behind a thousand that have ended is left in time") {
  using std::chrono::seconds;
  constexpr int kEnded = 1000;
  constexpr auto kLook = std::chrono::milliseconds(20);
  NcclMachine machine(2, {.timeout = seconds(2), .looks_every = kLook});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto stream = rank.device.make_stream({.name = "gather"});
    const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
    const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
    for (uint64_t i = 0; i < kEnded; ++i) {
      communicator->all_gather({&part, 1}, {.sequence = i, .label = "layers.3"}, *stream);
    }
    stream->synchronize();
    rank.meet("a thousand have ended");
    machine.nccl().hang_collectives();
    const auto begin = std::chrono::steady_clock::now();
    const std::string told = gather_and_wait(rank, *communicator);
    CAPTURE(told);
    CHECK(contains(told, "NCCL did not finish within 2.0 s"));
    // If each of them took one check, kEnded more checks would be necessary.
    CHECK(std::chrono::steady_clock::now() - begin < kEnded / 2 * kLook);
  });
  CHECK(machine.gpu().take_reports().empty());
}

TEST_CASE("a communicator's first collectives have more time than later ones") {
  for (const bool is_first : {true, false}) {
    CAPTURE(is_first);
    NcclMachine machine(2, {.timeout = std::chrono::milliseconds(100), .first_use = 10});
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const auto communicator = rank.make("gather");
      // The watchdog notices the end of earlier collectives when it checks a later one.
      for (int i = 0; i < 2 && !is_first; ++i) gather(rank, *communicator);
      rank.meet("used");
      machine.nccl().hang_collectives();
      const std::string told = gather_and_wait(rank, *communicator);
      CAPTURE(told);
      CHECK(
          contains(told, is_first ? "did not finish within 1.0 s" : "did not finish within 0.1 s"));
    });
    CHECK(machine.gpu().take_reports().empty());
  }
}

TEST_CASE("a call that NCCL refuses ends the job, and names the rank and the collective") {
  struct Refused {
    std::string name;
    int calls_before;  // number of calls that made the communicator
  };
  for (const auto& [name, before] :
       {Refused{"ncclGroupStart", 2}, Refused{"ncclAllGather", 0}, Refused{"ncclGroupEnd", 2}}) {
    CAPTURE(name);
    NcclMachine machine(2, {.timeout = std::chrono::milliseconds(2000)});
    machine.nccl().script({.name = name, .n = before + 1});
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      // The other rank may still be in the call that makes the communicator.
      const std::string told = told_in([&] { gather(rank, *rank.make("gather")); });
      CAPTURE(told);
      CHECK(contains(told, "system error"));
      CHECK(contains(told, "all_gather of 16 float32 'layers.3' #7"));
    });
    CHECK(machine.gpu().take_reports().empty());
  }
}

TEST_CASE("an error that NCCL finds on its own ends the job") {
  NcclMachine machine(2, {.timeout = std::chrono::milliseconds(5000)});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    machine.nccl().hang_collectives();
    if (rank.mesh.rank() == 1) {  // waits until rank 0 has issued its gather
      while (machine.nccl().calls("ncclAllGather", 0) == 0) std::this_thread::yield();
      machine.nccl().break_communicator(1, 1, Result::kRemoteError);
    }
    const std::string told = gather_and_wait(rank, *communicator);
    CAPTURE(told);
    CHECK(contains(told, "remote error"));
  });
}

TEST_CASE("a watchdog that cannot choose its device ends the job, not the process") {
  NcclMachine machine(2, {.timeout = std::chrono::milliseconds(5000)});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const std::string told = told_in([&] {
      rank.meet("made");  // the slower rank may return after the other has failed
      machine.gpu().choose([](std::string_view name) {
        return name == "cudaSetDevice" ? std::optional(cudaErrorInvalidDevice) : std::nullopt;
      });
      while (true) rank.meet("it watches");
    });
    CAPTURE(told);
    CHECK(contains(told, "gave up"));
    CHECK(contains(told, "cudaSetDevice"));
  });
  CHECK(machine.gpu().take_reports().empty());
}

TEST_CASE("who finds the job failed has aborted before it throws, and its memory may go") {
  NcclMachine machine(2, {.looks_every = std::chrono::milliseconds(60'000)});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto stream = rank.device.make_stream({.name = "gather"});
    const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
    const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
    if (rank.mesh.rank() == 1) {
      while (machine.nccl().calls("ncclAllGather", 0) == 0) std::this_thread::yield();
      rank.mesh.abort("it gives up");
      return;
    }
    const std::string told = told_in([&] {  // remains on the device until it is aborted
      while (true) communicator->all_gather({&part, 1}, {.label = "layers.3"}, *stream);
    });
    CAPTURE(told);
    CHECK(contains(told, "rank 1 gave up"));
    CHECK(machine.nccl().calls("ncclCommAbort", 0) == 1);
  });
  CHECK(machine.gpu().take_reports().empty());
}

TEST_CASE("a watchdog that hangs in a question of the device's is told of") {
  std::atomic<bool> hangs = false;
  std::atomic<int> told_of = 0;
  NcclMachine machine(
      2, {.timeout = std::chrono::milliseconds(400), .on_stuck = [&](const Failure& failure) {
            // A thread that waits for the simulated runtime at this time is reported too.
            const std::string text = CommError(failure.text, failure.code).what();
            if (!contains(text, "cudaEventQuery did not return")) return;
            CHECK(contains(text, "watch over NCCL's collectives"));
            ++told_of;
            hangs = false;  // in a program, the library would end the process
          }});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    rank.meet("made");
    machine.nccl().hang_collectives();
    if (rank.mesh.rank() == 0) {
      hangs = true;
      machine.gpu().choose([&](std::string_view name) {
        while (name == "cudaEventQuery" && hangs) std::this_thread::yield();
        return std::nullopt;
      });
    }
    CHECK_FALSE(gather_and_wait(rank, *communicator).empty());
  });
  CHECK(told_of > 0);
  CHECK(machine.gpu().take_reports().empty());
}

TEST_CASE("a communicator of which a rank does not come is not waited for for ever") {
  NcclMachine machine(2, {.timeout = std::chrono::milliseconds(200)});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const nccl::UniqueId id = rank.session->make_unique_id();
    if (rank.mesh.rank() == 1) return;
    std::string told;
    try {
      rank.session->join(id, {0, 1}, 0, "gather");
    } catch (const CommError& error) {
      told = error.what();
    }
    CAPTURE(told);
    CHECK(contains(told, "NCCL communicator 'gather'"));
  });
}
