#include "comm/shm/host_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/job/collective_failures.h"
#include "comm/job/futex.h"
#include "comm/job/job_member.h"
#include "comm/rendezvous/rendezvous.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The time for ranks to arrive. It is short enough that a wrong environment is reported within 10 s
// of the program's start.
constexpr auto kArriveWithin = milliseconds(8000);
// The time for ranks to arrive if fsdp-run has started them. It is longer, because a rank can then
// only be slow and not missing: fsdp-run reports a rank that ended before it arrived.
constexpr auto kStartWithin = milliseconds(60'000);

void require_job(const LaunchEnvironment& environment) {
  if (environment.launcher != Launcher::kFsdpRun && environment.job_key.empty()) {
    throw InvalidArgument(
        {.what = fmt::format("MASTER_PORT is not set, but WORLD_SIZE is set to {}",
                             environment.world_size),
         .where = "environment",
         .hint = "set MASTER_PORT to the same number on all ranks of the job (it only identifies "
                 "the job, no port is opened), or start the ranks with fsdp-run"});
  }
}

// Marks the ranks of other hosts as present.
void register_others(const ControlSegment& control, const std::vector<int>& pids) {
  for (int rank = 0; rank < control.world_size(); ++rank) {
    if (control.is_local(rank)) continue;
    RankStatus& status = control.status(rank);
    status.pid.store(pids[static_cast<size_t>(rank)]);
    // Another process of this host may have marked the rank before.
    RankState unknown = RankState::kAbsent;
    status.state.compare_exchange_strong(unknown, RankState::kPresent);
  }
}

// Marks this rank as present. Errors: InvalidArgument, for the whole job, if another process has
// the same rank.
void register_process(const ControlSegment& control, int rank) {
  RankStatus& status = control.status(rank);
  int32_t nobody = 0;
  // The first process with this rank is registered. A second process with this rank fails the job,
  // because it is unknown which of the two is the right one.
  if (!status.pid.compare_exchange_strong(nobody, getpid())) {
    const ErrorText text{.what = fmt::format("two processes have RANK={}: pid {} and pid {}", rank,
                                             nobody, getpid()),
                         .where = "start of the job",
                         .hint =
                             "give each process its own RANK; construct only one mesh per process, "
                             "and do not start an fsdp program from a rank"};
    report_failure(control, {.rank = -1, .code = ExitCode::kConfiguration, .text = text});
    throw InvalidArgument(text);
  }
  status.state.store(RankState::kPresent, std::memory_order_seq_cst);
  control.wake_all();
}

// Waits until every rank of this host has a process.
void wait_for_all(const ControlSegment& control, milliseconds timeout) {
  constexpr auto kWhere = "start of the job";
  const auto& wakes = control.wait_queue(static_cast<int>(Channel::kControl)).wakes;
  const auto deadline = Clock::now() + timeout;
  for (int peer = control.local().begin; control.is_local(peer);) {
    // `wakes` is read before the state. If the rank arrives after that, it changes `wakes`, so that
    // futex_wait returns at once.
    const uint32_t seen = wakes.load(std::memory_order_seq_cst);
    if (failed(control.failure())) throw_first_failure(control, kWhere);
    const RankState state = control.status(peer).state.load(std::memory_order_seq_cst);
    // After one of the two reports below, the next iteration throws the job's first failure. This
    // is the reported failure, unless another rank has failed the job before.
    if (state == RankState::kEnded) {
      report_failure(control, failure_of_end(control, peer, PeerEnd::kReported));
    } else if (state != RankState::kAbsent) {
      ++peer;
    } else if (Clock::now() < deadline) {
      futex_wait(wakes, seen, milliseconds(20));
    } else {
      report_failure(
          control,
          {.rank = peer,
           .code = ExitCode::kConfiguration,
           .text = {.what = fmt::format("rank {} of {} did not arrive within {}", peer,
                                        control.world_size(), seconds_text(timeout)),
                    .where = kWhere,
                    .hint = "make the mesh at the start of the program, before long work"}});
    }
  }
}

}  // namespace

HostRanks join_host(const LaunchEnvironment& environment, RankRange local, milliseconds timeout,
                    const std::vector<int>& pids) {
  require_job(environment);
  const bool launched = environment.launcher == Launcher::kFsdpRun;
  const milliseconds within = launched ? kStartWithin : std::min(timeout, kArriveWithin);
  // The descriptors in `joined` are closed at the end of this function, because JobMemory has its
  // own mappings and descriptors.
  JoinedJob joined = launched ? JoinedJob{inherited_job(environment), nullptr}
                              : rendezvous_in_directory(environment, local, within);
  auto memory = std::make_shared<const JobMemory>(joined.files, environment.world_size, local);
  const ControlSegment control = memory->control();
  // Once all local ranks are registered, each of them may use the statuses of all ranks. So the
  // ranks of other hosts are registered first.
  register_others(control, pids);
  register_process(control, environment.rank);
  wait_for_all(control, within);
  // From here on, a second process with the same rank makes the running job fail.
  if (joined.server) joined.server->refuse_latecomers(memory);
  std::vector<int> ranks(static_cast<size_t>(local.count));
  std::iota(ranks.begin(), ranks.end(), local.begin);
  const Mapping& own = memory->heap(environment.rank);
  return {.memory = memory,
          .heap = std::make_shared<SharedHeap>(memory, own.data(), own.bytes()),
          .processes = std::make_shared<const PeerProcesses>(control, ranks),
          .server = std::move(joined.server)};
}

}  // namespace fsdp
