// Makes each NCCL call fail, hang or stay in progress, while communicators are made and during a
// step, on one rank and on all ranks. Every rank must end soon, with an error that names rank,
// operation and position in the collective sequence.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/mesh_state.h"
#include "nccl/support/nccl_ranks.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;
using sim::NcclFault;
using sim::NcclWrong;
using std::chrono::milliseconds;

namespace {

constexpr int kWorld = 2;
constexpr int kGuilty = 1;
constexpr auto kTimeout = milliseconds(300);

// Makes the calls of a rank: it makes two communicators and a split, runs two steps of every
// collective, and ends everything.
void life_of_a_rank(const NcclRank& rank) {
  const auto stream = rank.device.make_stream({.name = "step"});
  const Buffer memory = rank.device.allocate(4096, MemoryKind::kDevice);
  const auto gather = rank.make("gather"), reduce = rank.make("reduce");
  const auto group = gather->split(0, -rank.mesh.rank());
  const CollectivePart part{memory.at(0), memory.at(1024), 16, DType::kFloat32};
  uint64_t place = 0;
  const auto tag = [&] { return CollectiveTag{.sequence = ++place, .label = "layers.3"}; };
  for (int step = 0; step < 2; ++step) {
    gather->all_gather({&part, 1}, tag(), *stream);
    reduce->reduce_scatter({&part, 1}, ReduceOp::kSum, tag(), *stream);
    reduce->all_reduce({&part, 1}, ReduceOp::kSum, tag(), *stream);
    group->broadcast({&part, 1}, 0, tag(), *stream);
    stream->synchronize();
  }
  rank.meet("end");
}

struct Outcome {
  std::vector<std::string> told;  // by rank; empty: no error
  std::optional<Failure> failure;
  std::vector<std::string> reports, left;
  double seconds = 0;
};

// Runs the ranks with `fault` on rank kGuilty, or on every rank if `on_all`.
Outcome run_with(NcclFault fault, bool on_all, milliseconds timeout) {
  Outcome outcome{.told = std::vector<std::string>(kWorld)};
  std::mutex mutex;
  NcclMachine* to_free = nullptr;
  NcclMachine machine(kWorld,
                      {.most_questions = 1, .timeout = timeout, .on_stuck = [&](const auto&) {
                         to_free->nccl().let_go();  // the library would end the process here
                       }});
  to_free = &machine;
  for (int rank = 0; rank < kWorld; ++rank) {
    if (!on_all && rank != kGuilty) continue;
    fault.device = rank;
    machine.nccl().script(fault);
  }
  const auto begin = std::chrono::steady_clock::now();
  run_nccl_ranks(kWorld, machine, [&](const NcclRank& rank) {
    std::string told;
    try {
      life_of_a_rank(rank);
    } catch (const Error& error) {
      told = error.what();
    }
    const std::lock_guard lock(mutex);
    outcome.told[static_cast<size_t>(rank.mesh.rank())] = told;
    if (!outcome.failure) {
      outcome.failure = state_of(rank.mesh).parts().control_plane->first_failure();
    }
  });
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  outcome.reports = machine.gpu().take_reports();
  outcome.left = machine.left_at_end();
  return outcome;
}

int64_t calls_of_a_rank(const std::string& name) {
  NcclMachine machine(kWorld, {.most_questions = 1});
  run_nccl_ranks(kWorld, machine, life_of_a_rank);
  CHECK(machine.gpu().take_reports().empty());
  return machine.nccl().calls(name, kGuilty);
}

// Returns true if the text names the creation or the end of a communicator, or a collective with
// its unit and its position in the collective sequence.
bool names_a_place(const std::string& told) {
  return contains(told, "NCCL communicator '") || contains(told, "layers.3' #") ||
         contains(told, "'warm-up'") || contains(told, "'split'") ||
         contains(told, "watch over NCCL's collectives") || contains(told, "start of the job");
}

void expect_failure(const Outcome& outcome, const std::string& name, NcclWrong wrong, bool on_all) {
  REQUIRE(outcome.failure);
  for (const std::string& told : outcome.told) {
    CAPTURE(told);
    CHECK(names_a_place(told));
  }
  if (wrong == NcclWrong::kStaysInProgress) {
    const std::string& what = outcome.failure->text.what;
    CAPTURE(what);
    // The other rank may be the first to notice that it waits.
    CHECK((what.starts_with("NCCL did not finish within 0.3 s") ||
           (!on_all && what.starts_with("rank 1 did not arrive within 0.3 s"))));
    return;
  }
  CHECK((on_all ? outcome.failure->rank >= 0 : outcome.failure->rank == kGuilty));
  // On a busy machine, the other rank may be the first to notice that this rank hangs.
  if (wrong == NcclWrong::kHangs && contains(outcome.failure->text.what, "did not arrive")) return;
  CHECK(contains(outcome.failure->text.what, fmt::format("on rank {}", outcome.failure->rank)));
  CHECK(contains(outcome.failure->text.what,
                 name == "ncclAllGather" || name == "ncclReduceScatter" ||
                         name == "ncclAllReduce" || name == "ncclBroadcast"
                     ? "a call of the group"
                     : name));
}

// Returns the numbers of the calls to fail: the first, second, middle and last one. The number of
// progress queries varies, because the watchdog makes queries too. The numbers chosen for queries
// are small enough to occur in every run.
std::set<int64_t> chosen(const std::string& name, int64_t calls) {
  if (name == "ncclCommGetAsyncError") return {1, 2, 7, 12};
  std::set<int64_t> chosen{1, (calls + 1) / 2, calls};
  if (calls > 1) chosen.insert(2);
  return chosen;
}

void try_each(const std::string& name, NcclWrong wrong) {
  for (const int64_t n : chosen(name, calls_of_a_rank(name))) {
    for (const bool on_all : {false, true}) {
      CAPTURE(name);
      CAPTURE(n);
      CAPTURE(on_all);
      const bool fails = wrong == NcclWrong::kFails;
      const Outcome outcome = run_with({.name = name, .n = n, .wrong = wrong}, on_all,
                                       fails ? milliseconds(5000) : kTimeout);
      expect_failure(outcome, name, wrong, on_all);
      CHECK(outcome.reports == std::vector<std::string>{});  // no call after an abort, nothing left
      CHECK(outcome.left == std::vector<std::string>{});
      CHECK(outcome.seconds < 10);
    }
  }
}

const std::vector<std::string> kOfCommunicators{"ncclCommInitRankConfig", "ncclCommSplit"};
const std::vector<std::string> kOfSteps{
    "ncclGroupStart", "ncclAllGather", "ncclReduceScatter",    "ncclAllReduce",
    "ncclBroadcast",  "ncclGroupEnd",  "ncclCommGetAsyncError"};

}  // namespace

TEST_CASE("each call of NCCL that fails ends the job on all ranks, with who, where and what") {
  for (const auto& names : {kOfCommunicators, kOfSteps}) {
    for (const std::string& name : names) try_each(name, NcclWrong::kFails);
  }
}

TEST_CASE("each call of NCCL that hangs is told of by its rank, and the others are out") {
  for (const auto& names : {kOfCommunicators, kOfSteps}) {
    for (const std::string& name : names) try_each(name, NcclWrong::kHangs);
  }
}

TEST_CASE("what stays in progress is given up when the time is over") {
  for (const std::string name : {"ncclCommInitRankConfig", "ncclCommSplit", "ncclGroupEnd"}) {
    try_each(name, NcclWrong::kStaysInProgress);
  }
}

TEST_CASE("the id that cannot be made ends the job on all ranks") {
  const Outcome outcome =
      run_with({.name = "ncclGetUniqueId"}, /*on_all=*/true, milliseconds(5000));
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->rank == 0);
  for (const std::string& told : outcome.told) {
    CHECK(contains(told, "ncclGetUniqueId failed on rank 0: system error"));
  }
  CHECK(outcome.reports.empty());
}

TEST_CASE("an end of a communicator that fails or stays in progress is an abort") {
  for (const NcclWrong wrong : {NcclWrong::kFails, NcclWrong::kStaysInProgress}) {
    const Outcome outcome =
        run_with({.name = "ncclCommFinalize", .wrong = wrong}, /*on_all=*/false, kTimeout);
    CHECK(outcome.told == std::vector<std::string>(kWorld));  // all work had already ended
    CHECK(outcome.reports.empty());
    CHECK(outcome.left.empty());
  }
}

TEST_CASE("an abort that fails or hangs does not keep the ranks") {
  for (const NcclWrong wrong : {NcclWrong::kFails, NcclWrong::kHangs}) {
    std::atomic<int> stuck = 0;
    NcclMachine* to_free = nullptr;
    NcclMachine machine(
        kWorld, {.timeout = kTimeout, .on_stuck = [&](const Failure& failure) {
                   CHECK(contains(failure.text.what, "ncclGroupEnd failed on rank 0"));
                   CHECK(contains(failure.text.cause, "ncclCommAbort did not return on rank 0"));
                   ++stuck;
                   to_free->nccl().let_go();
                 }});
    to_free = &machine;
    machine.nccl().script({.name = "ncclGroupEnd", .n = 6, .device = 0});
    machine.nccl().script({.name = "ncclCommAbort", .device = 0, .wrong = wrong});
    run_nccl_ranks(kWorld, machine,
                   [&](const NcclRank& rank) { CHECK_THROWS_AS(life_of_a_rank(rank), Error); });
    CHECK(stuck == (wrong == NcclWrong::kHangs ? 1 : 0));
    const std::vector<std::string> reports = machine.gpu().take_reports();
    CHECK(reports.empty());
  }
}
