#include "comm/shm/shm_mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "comm/job/futex.h"
#include "comm/job/peer_processes.h"
#include "comm/job/segment_control_plane.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/shm/shm_communicator.h"

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

// Waits until every rank has a process.
void wait_for_all(const ControlSegment& control, milliseconds timeout) {
  constexpr auto kWhere = "start of the job";
  const auto& wakes = control.wait_queue(static_cast<int>(Channel::kControl)).wakes;
  const auto deadline = Clock::now() + timeout;
  for (int peer = 0; peer < control.world_size();) {
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
      const double seconds = std::chrono::duration<double>(timeout).count();
      report_failure(
          control,
          {.rank = peer,
           .code = ExitCode::kConfiguration,
           .text = {.what = fmt::format("rank {} of {} did not arrive within {:.1f} s", peer,
                                        control.world_size(), seconds),
                    .where = kWhere,
                    .hint = "make the mesh at the start of the program, before long work"}});
    }
  }
}

// The control plane of processes. On rank 0 it owns the server, which rejects processes that start
// too late.
class ProcessControlPlane final : public SegmentControlPlane {
 public:
  ProcessControlPlane(std::shared_ptr<const JobMember> member, Communicator& control,
                      std::unique_ptr<RendezvousServer> server)
      : SegmentControlPlane(std::move(member), control), server_(std::move(server)) {}

 private:
  std::unique_ptr<RendezvousServer> server_;  // only on rank 0, and only if there is no launcher
};

// Joins this rank. Returns its membership when all ranks have arrived.
std::shared_ptr<const JobMember> join(const LaunchEnvironment& environment,
                                      const MeshOptions& options, milliseconds within,
                                      const std::shared_ptr<const JobMemory>& memory) {
  const ControlSegment control = memory->control();
  register_process(control, environment.rank);
  wait_for_all(control, within);
  std::vector<int> all(static_cast<size_t>(control.world_size()));
  std::iota(all.begin(), all.end(), 0);
  // PeerProcesses reads the pids of all ranks. wait_for_all has returned, so all of them are
  // registered.
  const auto peers = std::make_shared<const PeerProcesses>(control, all);
  return std::make_shared<const JobMember>(
      JobMember::Parts{.memory = memory,
                       .control = control,
                       .rank = environment.rank,
                       .kind = RankKind::kProcess,
                       .timeout = options.timeout,
                       .process_ended = [peers](int peer) { return peers->ended(peer); },
                       .on_slow_rank = slow_listener(options)});
}

}  // namespace

MeshParts shm_mesh(const LaunchEnvironment& environment, const MeshOptions& options) {
  require_job(environment);
  const MeshShape shape = shape_of(options, environment.world_size, environment.local_world_size);
  const bool launched = environment.launcher == Launcher::kFsdpRun;
  const milliseconds within = launched ? kStartWithin : std::min(options.timeout, kArriveWithin);
  // The descriptors in `joined` are closed at the end of this function, because JobMemory has its
  // own mappings and descriptors.
  JoinedJob joined = launched ? JoinedJob{inherited_job(environment), nullptr}
                              : rendezvous_in_directory(environment, within);
  const auto memory = std::make_shared<const JobMemory>(joined.files, environment.world_size);
  const auto member = join(environment, options, within, memory);
  const Mapping& own = memory->heap(environment.rank);
  const auto heap = std::make_shared<SharedHeap>(memory, own.data(), own.bytes());

  const auto make = [&](RankGroup group) -> std::unique_ptr<Communicator> {
    return std::make_unique<ShmCommunicator>(member, std::move(group), memory, heap);
  };
  const auto make_axis = [&](Axis axis, Channel gather, Channel reduce) {
    const std::vector<int> ranks = shape.ranks(axis, environment.rank);
    return AxisCommunicators{.gather = make(group_of(*member, gather, ranks)),
                             .reduce = make(group_of(*member, reduce, ranks))};
  };
  auto control = make(group_of_all(*member, Channel::kControl));
  // From here on, a second process with the same rank makes the running job fail.
  if (joined.server) joined.server->refuse_latecomers(memory);
  auto plane = std::make_unique<ProcessControlPlane>(member, *control, std::move(joined.server));
  MeshParts parts{.control_plane = std::move(plane),
                  .topology = {.host = host_name(),
                               .local_rank = environment.local_rank,
                               .local_world_size = environment.local_world_size},
                  .control = std::move(control),
                  .shape = shape,
                  .world = {.gather = make(group_of_all(*member, Channel::kGather)),
                            .reduce = make(group_of_all(*member, Channel::kReduce))},
                  .on_event = options.on_event};
  if (shape.has_two_axes()) {
    parts.shard = make_axis(Axis::kShard, Channel::kShardGather, Channel::kShardReduce);
    parts.replicate =
        make_axis(Axis::kReplicate, Channel::kReplicateGather, Channel::kReplicateReduce);
  }
  return parts;
}

}  // namespace fsdp
