// Checks that every wrong environment ends within ten seconds with code 78. Each process must print
// one line that names the variable, its value and the remedy. rendezvous_test.cpp tests ranks that
// connect wrongly.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include "launch.h"
#include "multiproc/error_texts.h"
#include "multiproc/hosts_on_loopback.h"

namespace fsdp::testing {
namespace {

struct Wrong {
  Environment changes;  // to a rank's correct environment; empty values are unset
  std::string line;     // error text with place and hint
};

const std::vector<Wrong> kWrong{
    {{{"RANK", ""}},
     "RANK is not set, but WORLD_SIZE is set to '2' (environment); hint: set both variables, unset "
     "both for one rank, or start the ranks with fsdp-run"},
    {{{"WORLD_SIZE", ""}},
     "WORLD_SIZE is not set, but RANK is set to '1' (environment); hint: set both variables, unset "
     "both for one rank, or start the ranks with fsdp-run"},
    {{{"RANK", "one"}},
     "RANK='one' is not a whole number (environment); hint: set RANK to a whole number of 0 or "
     "more, or "
     "start the ranks with fsdp-run"},
    {{{"RANK", "-1"}},
     "RANK='-1' is not a whole number (environment); hint: set RANK to a whole number of 0 or "
     "more, or "
     "start the ranks with fsdp-run"},
    {{{"RANK", "1 "}},
     "RANK='1 ' is not a whole number (environment); hint: set RANK to a whole number of 0 or "
     "more, or "
     "start the ranks with fsdp-run"},
    {{{"WORLD_SIZE", "2.0"}},
     "WORLD_SIZE='2.0' is not a whole number (environment); hint: set WORLD_SIZE to a whole number "
     "of 0 or more, or start the ranks with fsdp-run"},
    {{{"WORLD_SIZE", "99999999999999999999"}},
     "WORLD_SIZE='99999999999999999999' is not a whole number (environment); hint: set WORLD_SIZE "
     "to a whole number of 0 or more, or start the ranks with fsdp-run"},
    {{{"WORLD_SIZE", "0"}},
     "WORLD_SIZE=0, expected 1 or more (environment); hint: set WORLD_SIZE to the number of "
     "processes"},
    {{{"WORLD_SIZE", "2147483647"}},
     "WORLD_SIZE=2147483647 is more than the 65536 ranks that a job may have (environment); hint: "
     "set WORLD_SIZE to the number of processes that you start"},
    {{{"RANK", "2"}},
     "RANK=2, expected less than WORLD_SIZE=2 (environment); hint: set RANK to a number from 0 to "
     "1"},
    {{{"LOCAL_RANK", "2"}},
     "LOCAL_RANK=2, expected less than LOCAL_WORLD_SIZE=2 (environment); hint: set LOCAL_RANK to a "
     "number from 0 to 1"},
    {{{"LOCAL_WORLD_SIZE", "3"}},
     "LOCAL_WORLD_SIZE=3, expected 1 to WORLD_SIZE=2 (environment); hint: set LOCAL_WORLD_SIZE to "
     "the number "
     "of ranks on this host"},
    {{{"MASTER_PORT", ""}},
     "MASTER_PORT is not set, but WORLD_SIZE is set to 2 (environment); hint: set MASTER_PORT to "
     "the same number on all ranks of the job (it only identifies the job, no port is opened), or "
     "start the ranks with fsdp-run"},
    {{{"MASTER_PORT", "http"}},
     "MASTER_PORT='http' is not a whole number (environment); hint: set MASTER_PORT to a whole "
     "number of 0 or more, or start the ranks with fsdp-run"},
    {{{"MASTER_PORT", "65536"}},
     "MASTER_PORT=65536 is not a port number (environment); hint: set MASTER_PORT to a number from "
     "1 to 65535"},
    {{{"FSDP_JOB_FDS", "3,x"}},
     "FSDP_JOB_FDS='3,x' is not a list of file descriptors (environment); hint: do not set it by "
     "hand: "
     "fsdp-run sets it"},
    {{{"FSDP_JOB_FDS", "900,901,902"}},
     "file descriptor 900 of the job is not open (FSDP_JOB_FDS); Bad file descriptor; hint: let "
     "fsdp-run start the program directly: other processes cannot join the job"},
    {{{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}},
     std::string(kNoGloo) +
         " (Mesh::from_env); Gloo is a part of LibTorch, which is linked with the engine; hint: "
         "link the CMake target fsdp::fsdp"},
};

TEST_CASE(
    "a wrong variable ends with code 78 and one line that names it, its value and the remedy") {
  const TemporaryDirectory directory;
  for (const Wrong& wrong : kWrong) {
    CAPTURE(wrong.line);
    Environment environment = torchrun_rank(1, 2, directory.path());
    for (const auto& [name, value] : wrong.changes) environment[name] = value;
    const ProcessResult result = run_by_hand({environment}, {"steps", "5"}).front();
    CAPTURE(result.err);
    CHECK(result.code == 78);
    CHECK(result.seconds < 10 * kPatience);
    CHECK(result.err.find("fsdp: error[78] rank ") == 0);
    CHECK(result.err.ends_with(": " + wrong.line + "\n"));
    CHECK(lines_with(result.err, "\n") == 1);
  }
  CHECK(residue(directory.path()).empty());
}

TEST_CASE("on one host neither who holds the port nor what the address is matters") {
  const HeldPort holder;
  REQUIRE(listen(holder.socket_.get(), 1) == 0);
  const TemporaryDirectory directory;
  std::vector<Environment> environments;
  for (int rank = 0; rank < 2; ++rank) {
    environments.push_back(torchrun_rank(rank, 2, directory.path()));
    environments.back()["MASTER_PORT"] = std::to_string(holder.number);
    environments.back()["MASTER_ADDR"] = "no-such-host.invalid";
  }
  for (const ProcessResult& result : run_by_hand(environments, {"steps", "5"})) {
    CHECK(result.err == "");
    CHECK(result.code == 0);
  }
}

TEST_CASE("a process that is started within a rank cannot take its place, and the job says so") {
  const ProcessResult result =
      run_process({FSDP_RUN, "-n", "2", "--all-errors", "sh", "-c",
                   fmt::format("if [ $RANK = 1 ]; then {0} linger & fi; exec {0} steps 1000000000",
                               RANK_PROGRAM)});
  CAPTURE(result.err);
  CHECK(result.code == 78);
  CHECK(lines_with(result.err, ": " + two_processes(1)) >= 2);
  CHECK(result.err.find("do not start an fsdp program from a rank") != std::string::npos);
}

}  // namespace
}  // namespace fsdp::testing
