#include <fmt/format.h>
#include <unistd.h>

#include <thread>

#include "base/environment.h"
#include "comm/cpu/futex.h"
#include "comm/mesh_state.h"
#include "comm/rendezvous/build_id.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/shm/peer_processes.h"
#include "comm/shm/shm_communicator.h"
#include "comm/simulated/simulated_communicator.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Wrong environments end within 10 s, the program's own start included.
constexpr auto kMeetWithin = milliseconds(8000);
// With fsdp-run nobody can be missing, only slow: a rank that ended before it came is known.
constexpr auto kStartWithin = milliseconds(60'000);

void require_one_host(const LaunchEnvironment& environment) {
  if (environment.local_world_size != environment.world_size) {
    throw InvalidArgument(
        {.what = fmt::format("LOCAL_WORLD_SIZE={}, but WORLD_SIZE={}: several "
                             "hosts are not supported yet",
                             environment.local_world_size, environment.world_size),
         .where = "environment",
         .cause = {},
         .hint = "start all ranks on one host"});
  }
  if (environment.launcher != Launcher::kFsdpRun && environment.job_key.empty()) {
    throw InvalidArgument({.what = fmt::format("MASTER_PORT is not set, but WORLD_SIZE={} is",
                                               environment.world_size),
                           .where = "environment",
                           .cause = {},
                           .hint = "set MASTER_PORT to one number for all ranks of the job (no "
                                   "port is opened), or start the ranks with fsdp-run"});
  }
}

// Marks this rank as present. Errors: InvalidArgument, for the whole job, if another process did.
void register_process(const ControlSegment& control, int rank) {
  RankStatus& status = control.status(rank);
  int32_t nobody = 0;
  if (!status.pid.compare_exchange_strong(nobody, getpid())) {
    const ErrorText text{
        .what =
            fmt::format("two processes have RANK={}: pid {} and pid {}", rank, nobody, getpid()),
        .where = "start of the job",
        .cause = {},
        .hint = "make one mesh a process, and do not start fsdp programs from within a rank"};
    report_failure(control, {.rank = -1, .code = ExitCode::kConfiguration, .text = text});
    throw InvalidArgument(text);
  }
  status.state.store(RankState::kPresent, std::memory_order_seq_cst);
  control.wake_all();
}

// Waits until every rank has a process.
void wait_for_all(const ControlSegment& control, milliseconds timeout) {
  constexpr auto kWhere = "start of the job";
  const auto& wakes = control.wait_queue(static_cast<int>(Channel::kControl)).wakes;
  const auto deadline = Clock::now() + timeout;
  for (int peer = 0; peer < control.world_size();) {
    const uint32_t seen = wakes.load(std::memory_order_seq_cst);
    if (failed(control.failure())) throw_first_failure(control, kWhere);
    const RankState state = control.status(peer).state.load(std::memory_order_seq_cst);
    if (state == RankState::kEnded) {
      report_failure(control, failure_of_end(control, peer, PeerEnd::kReported));
    } else if (state != RankState::kAbsent) {
      ++peer;
    } else if (Clock::now() < deadline) {
      futex_wait(wakes, seen, milliseconds(20));
    } else {
      const double seconds = std::chrono::duration<double>(timeout).count();
      report_failure(
          control,
          {.rank = peer,
           .code = ExitCode::kConfiguration,
           .text = {.what = fmt::format("rank {} of {} did not arrive within {:.1f} s", peer,
                                        control.world_size(), seconds),
                    .where = kWhere,
                    .cause = {},
                    .hint = "make the mesh first thing in the program, before long work"}});
    }
  }
}

}  // namespace

Mesh Mesh::from_env(MeshOptions options) {
  const LaunchEnvironment environment = read_launch_environment();
  if (environment.world_size == 1) return local(1, {.on_warning = options.on_warning}).front();
  require_one_host(environment);
  const bool launched = environment.launcher == Launcher::kFsdpRun;
  const milliseconds meet_within = launched ? kStartWithin : std::min(options.timeout, kMeetWithin);
  JoinedJob joined = launched ? JoinedJob{inherited_job(environment), nullptr}
                              : rendezvous_in_directory(environment, meet_within);
  const auto memory = std::make_shared<const JobMemory>(joined.files, environment.world_size);
  const ControlSegment control = memory->control();
  const int rank = environment.rank;
  register_process(control, rank);
  wait_for_all(control, meet_within);
  const auto peers = std::make_shared<const PeerProcesses>(control);
  const auto job = std::make_shared<const JobMember>(
      JobMember::Parts{.memory = memory,
                       .control = control,
                       .rank = rank,
                       .timeout = options.timeout,
                       .process_ended = [peers](int peer) { return peers->ended(peer); },
                       .on_slow_rank = options.on_slow_rank});
  const auto heap =
      std::make_shared<SharedHeap>(memory, memory->heap(rank).data(), memory->heap(rank).bytes());
  auto state = std::make_shared<State>();
  state->job = job;
  state->local_rank = environment.local_rank;
  state->host = host_name();
  state->on_warning = options.on_warning;
  for (int kind = 0; kind < kChannels; ++kind) {
    state->channels[kind] =
        std::make_unique<ShmCommunicator>(job, memory, heap, static_cast<Channel>(kind));
  }
  if (options.ablate_communication) {
    for (const Channel kind : {Channel::kGather, Channel::kReduce}) {
      auto& channel = state->channels[static_cast<size_t>(kind)];
      channel = std::make_unique<SilentCommunicator>(std::move(channel));
    }
  }
  if (joined.server) joined.server->refuse_latecomers(memory);
  state->rendezvous_server = std::move(joined.server);
  Mesh mesh(std::move(state));
  mesh.agree("program", {fmt::format("build {}", build_id())});
  return mesh;
}

}  // namespace fsdp
