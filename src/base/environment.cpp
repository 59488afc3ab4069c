#include "base/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "fsdp/error.h"

namespace fsdp {
namespace {

// The most ranks of a job. A larger number is probably a typing error, and would need much memory,
// because memory and messages grow with the number of ranks.
constexpr int kMostRanks = 1 << 16;

[[noreturn]] void refuse(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .where = "environment", .hint = std::move(hint)});
}

std::string text_of(const Lookup& lookup, const char* name) {
  const char* value = lookup(name);
  return value != nullptr ? value : "";
}

std::optional<int> parse(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int> number(const Lookup& lookup, const char* name) {
  const char* text = lookup(name);
  if (text == nullptr) return std::nullopt;
  const std::optional<int> value = parse(text);
  if (!value || *value < 0) {
    refuse(fmt::format("{}='{}' is not a whole number", name, text),
           fmt::format("set {} to a whole number of 0 or more, or start the ranks with fsdp-run",
                       name));
  }
  return value;
}

// The names of the variables in which a launcher passes rank, world size, local rank and local
// world size.
struct Names {
  Launcher launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Names kTorchrunNames{Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                               "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpiNames{Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmiNames{Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                          "MPI_LOCALNRANKS"};
// SLURM_STEP_NUM_TASKS and SLURM_STEP_TASKS_PER_NODE describe the job step of this process.
// SLURM_NTASKS and SLURM_NTASKS_PER_NODE are not used, because they may describe the whole
// allocation.
constexpr Names kSlurmNames{Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                            "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};

// Finds the launcher by the variables that are set. Slurm is checked last, because another launcher
// may run within a Slurm step.
std::optional<Names> names_in(const Lookup& lookup) {
  // Outside a step, in a batch script, SLURM_* describes the allocation and not this process.
  const bool in_step = lookup("SLURM_STEP_ID") != nullptr && lookup(kSlurmNames.rank) != nullptr;
  for (const Names& names : {kTorchrunNames, kOpenMpiNames, kPmiNames}) {
    if (lookup(names.rank) == nullptr && lookup(names.world_size) == nullptr) continue;
    // srun --mpi=pmi2 sets PMI_*, too. Unlike mpiexec, srun does not set MPI_LOCALRANKID and
    // MPI_LOCALNRANKS.
    const bool by_srun =
        names.launcher == Launcher::kPmi && in_step && lookup(names.local_world_size) == nullptr;
    return by_srun ? kSlurmNames : names;
  }
  if (in_step) return kSlurmNames;
  return std::nullopt;
}

int required(const Lookup& lookup, const char* name, const char* because) {
  const std::optional<int> value = number(lookup, name);
  if (!value) {
    refuse(fmt::format("{} is not set, but {} is set to '{}'", name, because,
                       text_of(lookup, because)),
           fmt::format(
               "set both variables, unset both for one rank, or start the ranks with fsdp-run"));
  }
  return *value;
}

void require_below(const char* name, int value, const char* limit_name, int limit) {
  if (value < limit) return;
  refuse(fmt::format("{}={}, expected less than {}={}", name, value, limit_name, limit),
         fmt::format("set {} to a number from 0 to {}", name, limit - 1));
}

// Returns the entry of this node in SLURM_STEP_TASKS_PER_NODE. "2(x3),1" means that three nodes
// have two tasks each and the next node has one.
int tasks_on_node(const std::string& text, int node) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = std::string_view(text).substr(begin, end - begin);
    const size_t open = std::min(entry.find("(x"), entry.size());
    const std::optional<int> tasks = parse(entry.substr(0, open));
    std::optional<int> nodes = 1;
    if (open < entry.size()) {
      nodes = entry.ends_with(')') ? parse(entry.substr(open + 2, entry.size() - open - 3))
                                   : std::nullopt;
    }
    if (!tasks || !nodes) break;
    if (node < *nodes) return *tasks;
    node -= *nodes;
    begin = end + 1;
  }
  refuse(
      fmt::format("SLURM_STEP_TASKS_PER_NODE='{}' does not say how many tasks this node has", text),
      "do not set it by hand: srun sets it");
}

std::optional<int> local_world_size(const Lookup& lookup, const Names& names) {
  if (names.launcher != Launcher::kSlurm) return number(lookup, names.local_world_size);
  if (lookup(names.local_world_size) == nullptr) return std::nullopt;
  return tasks_on_node(lookup(names.local_world_size), number(lookup, "SLURM_NODEID").value_or(0));
}

void read_numbers(const Lookup& lookup, const Names& names, LaunchEnvironment& found) {
  found.launcher = names.launcher;
  found.rank = required(lookup, names.rank, names.world_size);
  found.world_size = required(lookup, names.world_size, names.rank);
  if (found.world_size < 1) {
    refuse(fmt::format("{}=0, expected 1 or more", names.world_size),
           fmt::format("set {} to the number of processes", names.world_size));
  }
  if (found.world_size > kMostRanks) {
    refuse(fmt::format("{}={} is more than the {} ranks that a job may have", names.world_size,
                       found.world_size, kMostRanks),
           fmt::format("set {} to the number of processes that you start", names.world_size));
  }
  require_below(names.rank, found.rank, names.world_size, found.world_size);
  // If the local world size is missing, all ranks count as ranks of this host. If only the local
  // rank is missing, ranks are assumed to be numbered host by host.
  found.local_world_size = local_world_size(lookup, names).value_or(found.world_size);
  if (found.local_world_size < 1 || found.local_world_size > found.world_size) {
    refuse(fmt::format("{}={}, expected 1 to {}={}", names.local_world_size, found.local_world_size,
                       names.world_size, found.world_size),
           fmt::format("set {} to the number of ranks on this host", names.local_world_size));
  }
  found.local_rank = number(lookup, names.local_rank).value_or(found.rank % found.local_world_size);
  require_below(names.local_rank, found.local_rank, names.local_world_size, found.local_world_size);
}

std::vector<int> descriptors(const Lookup& lookup) {
  const std::string text = text_of(lookup, "FSDP_JOB_FDS");
  std::vector<int> found;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto value = parse(std::string_view(text).substr(begin, end - begin));
    if (!value || *value < 0) {
      refuse(fmt::format("FSDP_JOB_FDS='{}' is not a list of file descriptors", text),
             "do not set it by hand: fsdp-run sets it");
    }
    found.push_back(*value);
    begin = end + 1;
  }
  return found;
}

bool is_set(const Lookup& lookup, const char* name) {
  const std::string text = text_of(lookup, name);
  if (!text.empty() && text != "0" && text != "1") {
    refuse(fmt::format("{}='{}' is neither 0 nor 1", name, text), fmt::format("set {}=1", name));
  }
  return text == "1";
}

// Returns a text that is the same for all ranks of a job and different for each job that this user
// starts on this host. Returns an empty string if the variables do not identify the job.
std::string key_of(const Lookup& lookup, const LaunchEnvironment& found) {
  switch (found.launcher) {
    case Launcher::kTorchrun:
      if (!found.master_port) return {};
      return fmt::format("torchrun {} {} {}", *found.master_port,
                         text_of(lookup, "TORCHELASTIC_RUN_ID"), found.restart_count);
    case Launcher::kOpenMpi: {
      // If PMIx sets no job name, the parent process identifies the job, because all ranks of a
      // host have the same parent.
      const std::string job = text_of(lookup, "PMIX_NAMESPACE");
      return fmt::format("mpirun {}", job.empty() ? std::to_string(getppid()) : job);
    }
    case Launcher::kPmi:
      return fmt::format("mpiexec {}", getppid());
    case Launcher::kSlurm:
      return fmt::format("srun {} {}", text_of(lookup, "SLURM_JOB_ID"),
                         text_of(lookup, "SLURM_STEP_ID"));
    case Launcher::kNone:
    case Launcher::kFsdpRun:
      break;
  }
  return {};
}

std::string_view name_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kFsdpRun:
      return "fsdp-run";
    case Launcher::kTorchrun:
      return "RANK and WORLD_SIZE";
    case Launcher::kOpenMpi:
      return "mpirun";
    case Launcher::kPmi:
      return "PMI";
    case Launcher::kSlurm:
      return "srun";
  }
  return "unknown";
}

}  // namespace

LaunchEnvironment read_launch_environment(const Lookup& lookup) {
  LaunchEnvironment found;
  found.error_file = text_of(lookup, "TORCHELASTIC_ERROR_FILE");
  found.runtime_dir = text_of(lookup, "XDG_RUNTIME_DIR");
  found.memory_dir = text_of(lookup, "FSDP_MEMORY_DIR");
  found.own_address = text_of(lookup, "FSDP_ADDRESS");
  const std::optional<Names> names = names_in(lookup);
  if (!names) return found;
  read_numbers(lookup, *names, found);
  found.master_addr = text_of(lookup, "MASTER_ADDR");
  found.master_port = number(lookup, "MASTER_PORT");
  if (found.master_port && (*found.master_port < 1 || *found.master_port > 65535)) {
    refuse(fmt::format("MASTER_PORT={} is not a port number", *found.master_port),
           "set MASTER_PORT to a number from 1 to 65535");
  }
  found.restart_count = number(lookup, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  // torchrun has one agent for each node, and GROUP_RANK is the agent's number. Two nodes may share
  // a host, so the host's name cannot identify a node. FSDP_NODE is for other launchers.
  found.node = text_of(lookup, lookup("FSDP_NODE") != nullptr ? "FSDP_NODE" : "GROUP_RANK");
  found.has_agent_store = text_of(lookup, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.has_launcher_store = is_set(lookup, "FSDP_LAUNCHER_STORE");
  found.job_token_file = text_of(lookup, "FSDP_JOB_TOKEN_FILE");
  found.no_token = is_set(lookup, "FSDP_NO_TOKEN");
  found.job_fds = descriptors(lookup);
  found.progress_fd = number(lookup, "FSDP_PROGRESS_FD").value_or(-1);
  // fsdp-run also sets torchrun's variables. Only fsdp-run passes file descriptors, so they
  // identify fsdp-run.
  if (!found.job_fds.empty()) found.launcher = Launcher::kFsdpRun;
  found.job_key = key_of(lookup, found);
  return found;
}

LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const char* name) { return std::getenv(name); });
}

std::string describe(const LaunchEnvironment& environment) {
  std::string line = fmt::format("rank {} of {} (local {} of {}) by {}", environment.rank,
                                 environment.world_size, environment.local_rank,
                                 environment.local_world_size, name_of(environment.launcher));
  if (environment.master_port) line += fmt::format(", MASTER_PORT {}", *environment.master_port);
  if (environment.restart_count > 0) {
    line += fmt::format(", restart {}", environment.restart_count);
  }
  return line;
}

}  // namespace fsdp
