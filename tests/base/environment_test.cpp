#include "base/environment.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "fsdp/error.h"

namespace fsdp {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_refused(const Variables& variables, const std::string& text) {
  CAPTURE(text);
  try {
    read(variables);
    FAIL_CHECK("was accepted");
  } catch (const InvalidArgument& error) {
    CHECK(error.exit_code() == 78);
    CHECK(error.what() == text);
  }
}

TEST_CASE("without a launcher there is one rank") {
  const LaunchEnvironment found = read({});
  CHECK(found.launcher == Launcher::kNone);
  CHECK(found.world_size == 1);
  CHECK(describe(found) == "rank 0 of 1 (local 0 of 1) by no launcher");
}

TEST_CASE("torchrun's variables are read") {
  const LaunchEnvironment found = read({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_ADDR", "node1"},
                                        {"MASTER_PORT", "29500"},
                                        {"TORCHELASTIC_RUN_ID", "job7"},
                                        {"TORCHELASTIC_RESTART_COUNT", "2"},
                                        {"TORCHELASTIC_ERROR_FILE", "/x/error.json"},
                                        {"XDG_RUNTIME_DIR", "/run/user/7"}});
  CHECK(found.launcher == Launcher::kTorchrun);
  CHECK(found.rank == 5);
  CHECK(found.world_size == 8);
  CHECK(found.local_rank == 1);
  CHECK(found.local_world_size == 4);
  CHECK(found.master_addr == "node1");
  CHECK(found.master_port == 29500);
  CHECK(found.restart_count == 2);
  CHECK(found.job_key == "torchrun 29500 job7 2");
  CHECK(found.error_file == "/x/error.json");
  CHECK(found.runtime_dir == "/run/user/7");
  CHECK(describe(found) ==
        "rank 5 of 8 (local 1 of 4) by RANK and WORLD_SIZE, MASTER_PORT 29500, restart 2");
}

TEST_CASE("RANK and WORLD_SIZE alone mean one host") {
  const LaunchEnvironment found = read({{"RANK", "1"}, {"WORLD_SIZE", "3"}});
  CHECK(found.local_rank == 1);
  CHECK(found.local_world_size == 3);
  CHECK(found.job_key == "");
}

TEST_CASE("fsdp-run's descriptors are read") {
  const LaunchEnvironment found =
      read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"FSDP_JOB_FDS", "3,14,15"}});
  CHECK(found.launcher == Launcher::kFsdpRun);
  CHECK(found.job_fds == std::vector<int>{3, 14, 15});
  expect_refused(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"FSDP_JOB_FDS", "3,x"}},
      "FSDP_JOB_FDS='3,x' is not a list of file descriptors (environment); hint: do not set "
      "it by hand: fsdp-run sets it");
}

TEST_CASE("the variables of a job on several hosts are read under every launcher") {
  Variables job{{"OMPI_COMM_WORLD_RANK", "0"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"FSDP_JOB_TOKEN_FILE", "/home/me/token"},
                {"FSDP_ADDRESS", "10.0.0.5"}};
  CHECK(read(job).job_token_file == "/home/me/token");
  CHECK(read(job).own_address == "10.0.0.5");
  CHECK(read({{"FSDP_ADDRESS", "10.0.0.5"}}).own_address == "10.0.0.5");  // for fsdp-doctor
  for (const auto& [value, is_set] :
       std::map<std::string, bool>{{"1", true}, {"0", false}, {"", false}}) {
    job["FSDP_NO_TOKEN"] = job["FSDP_LAUNCHER_STORE"] = value;
    CHECK(read(job).no_token == is_set);
    CHECK(read(job).has_launcher_store == is_set);
    CHECK(read(job).rank_0_serves_store() != is_set);
  }
  job["FSDP_NO_TOKEN"] = "yes";
  expect_refused(job,
                 "FSDP_NO_TOKEN='yes' is neither 0 nor 1 (environment); hint: set FSDP_NO_TOKEN=1");
}

TEST_CASE("mpirun's, PMI's and srun's variables are read, in this order after RANK") {
  Variables all{{"SLURM_STEP_ID", "0"},
                {"SLURM_JOB_ID", "99"},
                {"SLURM_PROCID", "1"},
                {"SLURM_STEP_NUM_TASKS", "2"},
                {"SLURM_LOCALID", "1"}};
  CHECK(read(all).launcher == Launcher::kSlurm);
  CHECK(read(all).job_key == "srun 99 0");
  all.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});  // srun --mpi=pmi2
  CHECK(read(all).launcher == Launcher::kSlurm);
  all.insert({{"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}});  // an mpiexec within a step
  all["PMI_RANK"] = "2";
  all["PMI_SIZE"] = "3";
  CHECK(read(all).launcher == Launcher::kPmi);
  CHECK(read(all).local_rank == 2);
  all.insert({{"OMPI_COMM_WORLD_RANK", "3"},
              {"OMPI_COMM_WORLD_SIZE", "4"},
              {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
              {"PMIX_NAMESPACE", "prte-7@1"}});
  CHECK(read(all).launcher == Launcher::kOpenMpi);
  CHECK(read(all).world_size == 4);
  CHECK(read(all).job_key == "mpirun prte-7@1");
  all.insert({{"RANK", "4"}, {"WORLD_SIZE", "5"}});
  CHECK(read(all).launcher == Launcher::kTorchrun);
}

TEST_CASE("a step's numbers count, not those of the allocation around it") {
  const Variables step{{"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "2"},
                       {"SLURM_NTASKS", "4"},         {"SLURM_NTASKS_PER_NODE", "4"}};
  CHECK(read(step).world_size == 2);
  CHECK(read(step).local_world_size == 2);
  // salloc opens a shell if LaunchParameters=use_interactive_step. This shell is a job of one
  // process.
  CHECK(read({{"SLURM_STEP_ID", "4294967290"},
              {"SLURM_PROCID", "0"},
              {"SLURM_STEP_NUM_TASKS", "1"},
              {"SLURM_STEP_TASKS_PER_NODE", "1"},
              {"SLURM_NTASKS", "4"}})
            .world_size == 1);
}

TEST_CASE("srun says how many ranks each of its hosts has") {
  Variables step{{"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_STEP_NUM_TASKS", "7"},
                 {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
  CHECK(read(step).local_world_size == 2);
  step["SLURM_NODEID"] = "2";
  CHECK(read(step).local_world_size == 2);
  step["SLURM_NODEID"] = "3";
  CHECK(read(step).local_world_size == 1);
  const std::string hint =
      " does not say how many tasks this node has (environment); hint: do not set it by hand: srun "
      "sets it";
  step["SLURM_NODEID"] = "4";
  expect_refused(step, "SLURM_STEP_TASKS_PER_NODE='2(x3),1'" + hint);
  step["SLURM_NODEID"] = "0";
  for (const std::string wrong : {"", "x", "2(x", "2(x)", "2(x3"}) {
    step["SLURM_STEP_TASKS_PER_NODE"] = wrong;
    expect_refused(step, "SLURM_STEP_TASKS_PER_NODE='" + wrong + "'" + hint);
  }
}

TEST_CASE("SLURM_* outside a step says nothing about this process") {
  CHECK(read({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}).launcher == Launcher::kNone);
}

TEST_CASE("half of a pair of variables is refused") {
  expect_refused({{"WORLD_SIZE", "2"}},
                 "RANK is not set, but WORLD_SIZE is set to '2' (environment); hint: set both "
                 "variables, unset both for one rank, or start the ranks with fsdp-run");
  expect_refused({{"RANK", "0"}},
                 "WORLD_SIZE is not set, but RANK is set to '0' (environment); hint: set both "
                 "variables, unset both for one rank, or start the ranks with fsdp-run");
}

TEST_CASE("a value that is no whole number is refused with variable and value") {
  for (const std::string value : {"", "x", "1.5", "-1", "0x2", "99999999999", " 1", "1 "}) {
    expect_refused({{"RANK", value}, {"WORLD_SIZE", "2"}},
                   "RANK='" + value +
                       "' is not a whole number (environment); hint: set RANK to a whole number of "
                       "0 or more, or start the ranks with fsdp-run");
  }
}

TEST_CASE("ranks outside their world are refused") {
  expect_refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}},
                 "RANK=4, expected less than WORLD_SIZE=4 (environment); hint: set RANK to a "
                 "number from 0 to 3");
  expect_refused(
      {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
      "WORLD_SIZE=0, expected 1 or more (environment); hint: set WORLD_SIZE to the number "
      "of processes");
  for (const char* size : {"65537", "1000000", "2147483647"}) {
    expect_refused({{"RANK", "0"}, {"WORLD_SIZE", size}},
                   std::string("WORLD_SIZE=") + size +
                       " is more than the 65536 ranks that a job may have (environment); hint: set "
                       "WORLD_SIZE to the number of processes that you start");
  }
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "65536"}}).world_size == 65536);
  expect_refused(
      {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
      "LOCAL_RANK=2, expected less than LOCAL_WORLD_SIZE=2 (environment); hint: set LOCAL_RANK to "
      "a number from 0 to 1");
  expect_refused(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}},
      "LOCAL_WORLD_SIZE=3, expected 1 to WORLD_SIZE=2 (environment); hint: set LOCAL_WORLD_SIZE "
      "to the number of ranks on this host");
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}},
                 "MASTER_PORT=70000 is not a port number (environment); hint: set MASTER_PORT to a "
                 "number from 1 to 65535");
}

}  // namespace
}  // namespace fsdp
