// Reads a launcher's environment variables, in this one place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

enum class Launcher : uint8_t { kNone, kFsdpRun, kTorchrun, kOpenMpi, kPmi, kSlurm };

// This process's place among the ranks of its job. Without a launcher: one rank.
struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;
  std::optional<int> master_port;
  // Equal for the ranks of one start of one job, different for other starts of this user on this
  // host. Empty if the variables do not identify it.
  std::string job_key;
  int restart_count = 0;     // TORCHELASTIC_RESTART_COUNT; more than 0: a restarted job
  std::vector<int> job_fds;  // FSDP_JOB_FDS: the job's memory, inherited from fsdp-run
  // In a job of several hosts: equal for the ranks of one host. Empty: use the host's name.
  std::string node{};
  // TORCHELASTIC_USE_AGENT_STORE: the launcher's agent serves a store at MASTER_ADDR, MASTER_PORT.
  bool has_agent_store = false;
  std::string error_file;   // TORCHELASTIC_ERROR_FILE: the agent reads a failure there
  std::string runtime_dir;  // XDG_RUNTIME_DIR
};

using Lookup = std::function<const char*(const char* name)>;

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (fsdp-run, torchrun, by hand), else
// OMPI_COMM_WORLD_* (mpirun), else PMI_* (mpiexec), else SLURM_* inside a step (srun).
// Errors: InvalidArgument (78) naming variable, value and remedy.
LaunchEnvironment read_launch_environment(const Lookup& lookup);
// Reads the same from the process's environment.
LaunchEnvironment read_launch_environment();

// Returns a line for people: "rank 1 of 4 (local 1 of 4) by torchrun, MASTER_PORT 29500".
std::string describe(const LaunchEnvironment& environment);

}  // namespace fsdp
