// Reads a launcher's environment variables. No other file reads these variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

enum class Launcher : uint8_t { kNone, kFsdpRun, kTorchrun, kOpenMpi, kPmi, kSlurm };

// The position of this process among the ranks of its job. Without a launcher there is one rank.
struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;
  std::optional<int> master_port;
  // A key that is equal for all ranks of one start of a job. Other starts by this user on this host
  // have other keys. The key is empty if the environment variables do not identify the start.
  std::string job_key;
  int restart_count = 0;     // TORCHELASTIC_RESTART_COUNT; more than 0 if the job was restarted
  std::vector<int> job_fds;  // FSDP_JOB_FDS: the job's memory, inherited from fsdp-run
  std::string memory_dir;  // FSDP_MEMORY_DIR: a folder in memory that fsdp-run keeps over restarts
  int progress_fd = -1;    // FSDP_PROGRESS_FD: memory for a job's progress (JobProgress); -1: none
  // FSDP_NODE or GROUP_RANK: a text that is equal for all ranks of one node, in a job of several
  // hosts. If it is empty, the host's name is used instead.
  std::string node{};
  // TORCHELASTIC_USE_AGENT_STORE: the launcher's agent runs a store at MASTER_ADDR, MASTER_PORT.
  bool has_agent_store = false;
  // FSDP_LAUNCHER_STORE=1: fsdp-run serves the ranks' store at MASTER_ADDR, MASTER_PORT.
  bool has_launcher_store = false;
  std::string job_token_file;  // FSDP_JOB_TOKEN_FILE: the file with the job's token
  bool no_token = false;       // FSDP_NO_TOKEN=1: the job needs no token
  std::string own_address;     // FSDP_ADDRESS: the address by which other hosts reach this host
  std::string error_file;      // TORCHELASTIC_ERROR_FILE: the agent reads the error there
  std::string runtime_dir;     // XDG_RUNTIME_DIR

  // Returns true if no launcher serves the store of a job on several hosts, so that rank 0 does.
  bool rank_0_serves_store() const { return !has_agent_store && !has_launcher_store; }
};

using Lookup = std::function<const char*(const char* name)>;

// Reads the variables of the first launcher that is found, in this order: RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE (fsdp-run, torchrun, or set by hand); OMPI_COMM_WORLD_* (mpirun);
// PMI_* (mpiexec); SLURM_* inside a step (srun).
// Errors: InvalidArgument (78) if a variable is missing or has a wrong value. The error names the
//   variable, its value and the remedy.
LaunchEnvironment read_launch_environment(const Lookup& lookup);
// Reads the environment of this process.
LaunchEnvironment read_launch_environment();

// Returns a line for users: "rank 1 of 4 (local 1 of 4) by torchrun, MASTER_PORT 29500".
std::string describe(const LaunchEnvironment& environment);

}  // namespace fsdp
