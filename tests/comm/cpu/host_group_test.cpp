// Tests collectives among the ranks of one host in a job of several hosts.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/local/local_communicator.h"
#include "fsdp/error.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"

namespace fsdp {
namespace {

constexpr int kWorld = 9;
constexpr RankRange kLocal{4, 3};

// The communicators of one rank of the host, on two channels.
struct OfHost {
  std::unique_ptr<Communicator> gather, reduce;
  std::atomic<uint32_t>* host_waits;  // of this rank, in the segment
};

// Calls body(rank, communicators) in one thread for each rank of the host. Returns the error texts
// by local rank; a text is empty if the rank did not throw.
template <class Body>
std::vector<std::string> run_on_host(std::chrono::milliseconds timeout, Body body) {
  const auto memory =
      std::make_shared<Buffer>(allocate_host(ControlSegment::bytes_for(kWorld, kLocal)));
  const ControlSegment control(memory->data(), kWorld, kLocal);
  std::vector<OfHost> communicators;
  for (int rank = kLocal.begin; kLocal.contains(rank); ++rank) {
    control.status(rank).state.store(RankState::kPresent);
    const auto member =
        std::make_shared<const JobMember>(JobMember::Parts{.memory = memory,
                                                           .control = control,
                                                           .rank = rank,
                                                           .kind = RankKind::kThread,
                                                           .timeout = timeout});
    const auto make = [&](Channel channel) {
      return std::make_unique<LocalCommunicator>(member, group_of(*member, channel, {4, 5, 6}));
    };
    communicators.push_back({.gather = make(Channel::kGather),
                             .reduce = make(Channel::kReduce),
                             .host_waits = &control.status(rank).host_waits});
  }
  std::vector<std::string> thrown(kLocal.count);
  std::vector<std::thread> threads;
  for (int i = 0; i < kLocal.count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(kLocal.begin + i, communicators[i]);
      } catch (const std::exception& error) {
        thrown[i] = error.what();
        communicators[i].gather->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

void gather(Communicator& communicator, int64_t mine, uint64_t sequence) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
  std::array<int64_t, 3> all{};
  const CollectivePart part{&mine, all.data(), 1, DType::kInt64};
  communicator.all_gather({&part, 1}, {.sequence = sequence, .label = "numbers"}, *stream);
  CHECK(all == std::array<int64_t, 3>{4, 5, 6});
}

// The waiting ranks look at the other channel. There they must not take the memory of one rank for
// that of a rank of another host.
TEST_CASE("the ranks of a host wait for each other, and not for ranks of other hosts") {
  CHECK(run_on_host(std::chrono::seconds(30), [](int rank, OfHost& of) {
          for (uint64_t sequence = 1; sequence <= 6; ++sequence) {
            const bool is_late = sequence % 3 == static_cast<uint64_t>(rank % 3);
            if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(60));
            gather(sequence % 2 == 0 ? *of.gather : *of.reduce, rank, sequence);
          }
        }) == std::vector<std::string>(3));
}

TEST_CASE("ranks of a host that issue different collectives are named by the job's numbers") {
  for (const bool other_channel : {false, true}) {
    CAPTURE(other_channel);
    const auto thrown = run_on_host(std::chrono::seconds(30), [&](int rank, OfHost& of) {
      const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
      Communicator& used = rank == 6 && other_channel ? *of.reduce : *of.gather;
      used.barrier({.sequence = 1, .label = rank == 6 ? "b" : "a"}, *stream);
    });
    for (const std::string& text : thrown) {
      CAPTURE(text);
      CHECK(text.find("issued barrier 'a' #1, rank 6 issued barrier 'b' #1") != std::string::npos);
    }
  }
}

TEST_CASE("a rank of the host that does not arrive is named by its number in the job") {
  std::atomic<int> waiting = 2;
  const auto thrown = run_on_host(std::chrono::milliseconds(300), [&](int rank, OfHost& of) {
    if (rank == 5) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    CHECK_THROWS_WITH_AS(gather(*of.gather, rank, 1), doctest::Contains("rank 5 did not arrive"),
                         CommError);
    --waiting;
  });
  CHECK(thrown == std::vector<std::string>(3));
}

TEST_CASE("a rank that waits for another host is not named before twice the time-out") {
  for (const bool other_is_missing : {true, false}) {
    CAPTURE(other_is_missing);
    std::atomic<int> waiting = other_is_missing ? 1 : 2;
    std::atomic<bool> is_waiting = false;
    const auto thrown = run_on_host(std::chrono::milliseconds(300), [&](int rank, OfHost& of) {
      if (rank == 5) of.host_waits->store(1);
      if (rank == 5) is_waiting = true;
      while (!is_waiting) std::this_thread::yield();
      if (rank == 5 || (rank == 6 && other_is_missing)) {
        while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      CHECK_THROWS_WITH_AS(
          gather(*of.gather, rank, 1),
          doctest::Contains(other_is_missing ? "rank 6 did not arrive" : "rank 5 did not arrive"),
          CommError);
      const auto waited = std::chrono::steady_clock::now() - begin;
      CHECK((other_is_missing || waited >= std::chrono::milliseconds(450)));
      --waiting;
    });
    CHECK(thrown == std::vector<std::string>(3));
  }
}

}  // namespace
}  // namespace fsdp
