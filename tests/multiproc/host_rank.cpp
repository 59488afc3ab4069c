// A rank of a job on several hosts, without GPUs: ranks connect through a store and exchange host
// memory.
//   torch_rank host ROUNDS [FAULT RANK ROUND [BUSY]]
// RANK does FAULT in that round: kill, stop or throw. From then on rank BUSY does something else,
// until the job has failed. Prints the texts received in the last round.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/fsdp.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "comm/store/store_mesh.h"
#include "libtorch/torch_store.h"
#include "torch_rank.h"

namespace fsdp::testing {
namespace {

void commit(const std::string& fault) {
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "throw") throw IoError(ExitCode::kIoError, {.what = "the disk is full"});
}

int rounds(ControlPlane& plane, const std::vector<std::string>& words) {
  const int count = std::stoi(words[0]);
  const bool is_guilty = words.size() > 3 && std::stoi(words[2]) == plane.rank();
  const bool is_busy = words.size() > 4 && std::stoi(words[4]) == plane.rank();
  std::vector<std::string> heard;
  for (int round = 1; round <= count; ++round) {
    if (is_guilty && std::stoi(words[3]) == round) commit(words[1]);
    while (is_busy && std::stoi(words[3]) == round && !plane.first_failure()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    heard = plane.exchange({.label = "round"}, fmt::format("{}.{}", plane.rank(), round));
  }
  fmt::print("{}\n", fmt::join(heard, " "));
  return 0;
}

}  // namespace

int host_rank(int count, char** words) {
  const char* const timeout = std::getenv("TEST_TIMEOUT_MS");
  MeshOptions options;
  if (timeout != nullptr) options.timeout = std::chrono::milliseconds(std::atoi(timeout));
  const LaunchEnvironment environment = read_launch_environment();
  const ErrorPlace place{.rank = environment.rank, .world_size = environment.world_size};
  try {
    MeshParts parts = store_mesh(environment, options, open_torch_store).parts;
    try {
      return rounds(*parts.control_plane, {words + 1, words + count});
    } catch (const std::exception& error) {
      parts.control_plane->abort(error.what());
      throw;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error_line(error, place));
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace fsdp::testing
