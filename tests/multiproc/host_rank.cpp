// A rank of a job on several hosts, without GPUs: ranks connect through a store and exchange host
// memory.
//   torch_rank host ROUNDS [FAULT RANK ROUND [BUSY]]
//   torch_rank sharing-host ROUNDS [FAULT RANK ROUND [BUSY]]
// In the second mode, the ranks of each host share memory, and gather through it in each round.
// RANK does FAULT in that round: kill, stop or throw. From then on rank BUSY does something else,
// until the job has failed. Prints the texts received in the last round. After the first round,
// each rank creates the file $TEST_BEGUN-RANK.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/fsdp.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "comm/shm/shm_communicator.h"
#include "comm/store/open_job_store.h"
#include "comm/store/store_mesh.h"
#include "libtorch/torch_store.h"
#include "support/cpu_streams.h"
#include "torch_rank.h"

namespace fsdp::testing {
namespace {

void commit(const std::string& fault) {
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "throw") throw IoError(ExitCode::kIoError, {.what = "the disk is full"});
}

// Gathers over the ranks of this host.
void gather_inside(Communicator& host) {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "inside");
  std::vector<int64_t> all(static_cast<size_t>(host.size()));
  const int64_t mine = host.rank();
  const CollectivePart part{&mine, all.data(), 1, DType::kInt64};
  host.all_gather({&part, 1}, {.label = "inside"}, *stream);
  for (int rank = 0; rank < host.size(); ++rank) {
    if (all[static_cast<size_t>(rank)] != rank) throw std::runtime_error("wrong value inside");
  }
}

// `host`: the communicator of this host's ranks; may be null.
int rounds(ControlPlane& plane, Communicator* host, const std::vector<std::string>& words) {
  const int count = std::stoi(words[0]);
  const bool is_guilty = words.size() > 3 && std::stoi(words[2]) == plane.rank();
  const bool is_busy = words.size() > 4 && std::stoi(words[4]) == plane.rank();
  std::vector<std::string> heard;
  for (int round = 1; round <= count; ++round) {
    if (is_guilty && std::stoi(words[3]) == round) commit(words[1]);
    while (is_busy && std::stoi(words[3]) == round && !plane.first_failure()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (host != nullptr) gather_inside(*host);
    heard = plane.exchange({.label = "round"}, fmt::format("{}.{}", plane.rank(), round));
    const char* const begun = std::getenv("TEST_BEGUN");
    if (round == 1 && begun != nullptr) std::ofstream(fmt::format("{}-{}", begun, plane.rank()));
  }
  fmt::print("{}\n", fmt::join(heard, " "));
  return 0;
}

int rounds_or_abort(ControlPlane& plane, Communicator* host,
                    const std::vector<std::string>& words) {
  try {
    return rounds(plane, host, words);
  } catch (const std::exception& error) {
    plane.abort(error.what());
    throw;
  }
}

int share_inside_hosts(const StoreRanks& joined, const std::vector<std::string>& words) {
  const HostRanks& host = joined.host;
  const RankRange local = host.memory->control().local();
  std::vector<int> ranks;
  for (int rank = local.begin; local.contains(rank); ++rank) ranks.push_back(rank);
  ShmCommunicator inside(joined.member, group_of(*joined.member, Channel::kGather, ranks),
                         host.memory, host.heap);
  return rounds_or_abort(*joined.parts.control_plane, &inside, words);
}

}  // namespace

int host_rank(int count, char** words) {
  const char* const timeout = std::getenv("TEST_TIMEOUT_MS");
  MeshOptions options;
  if (timeout != nullptr) options.timeout = std::chrono::milliseconds(std::atoi(timeout));
  const LaunchEnvironment environment = read_launch_environment();
  const ErrorPlace place{.rank = environment.rank, .world_size = environment.world_size};
  const std::vector<std::string> arguments(words + 1, words + count);
  options.on_event = [&](const MeshEvent& event) {
    if (event.kind != MeshEvent::Kind::kWarning) return;
    fmt::print(stderr, "{}\n", warning_line(event.text, place));
  };
  try {
    const bool shares = std::string_view(words[0]) == "sharing-host";
    const StoreRanks joined =
        mesh_over_store(open_job_store(environment, options, open_torch_store), environment,
                        options, shares ? HostMemory::kShared : HostMemory::kSeparate);
    if (shares) return share_inside_hosts(joined, arguments);
    return rounds_or_abort(*joined.parts.control_plane, nullptr, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error_line(error, place));
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace fsdp::testing
