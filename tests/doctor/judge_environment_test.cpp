// Tests the findings about environment variables.
#include <doctest/doctest.h>

#include "doctor/support/machines.h"
#include "programs/doctor/doctor.h"

namespace fsdp::testing {
namespace {

using doctor::Facts;
using doctor::Variable;
using Lines = std::vector<std::string>;

Lines said_of(const std::vector<Variable>& variables, Facts facts = sound_machine(2),
              DeviceKind device = DeviceKind::kCuda) {
  facts.host.variables = variables;
  return lines_of(judge_environment(facts, device));
}

TEST_CASE("without variables that change a run the environment is as it should be") {
  CHECK(said_of({}) == Lines{"environment ok no variable changes a run"});
}

TEST_CASE("variables that do no harm share a line") {
  CHECK(said_of({{"CUDA_VISIBLE_DEVICES", "0,1"},
                 {"NCCL_DEBUG", "INFO"},
                 {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
                 {"NCCL_P2P_DISABLE", "0"},
                 {"OMP_NUM_THREADS", "4"}}) ==
        Lines{"environment ok CUDA_VISIBLE_DEVICES='0,1', NCCL_DEBUG='INFO', "
              "NCCL_LAUNCH_ORDER_IMPLICIT='1', NCCL_P2P_DISABLE='0', OMP_NUM_THREADS='4'"});
}

TEST_CASE("values that do harm are named, each with its consequence") {
  CHECK(said_of({{"CUDA_LAUNCH_BLOCKING", "1"}}) ==
        Lines{"environment note CUDA_LAUNCH_BLOCKING='1': every launch waits for its kernel: "
              "nothing runs beside compute",
              "  remedy: unset it, unless you look for a failing kernel"});
  CHECK(
      said_of({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}) ==
      Lines{"environment note CUDA_DEVICE_MAX_CONNECTIONS='1': all streams share one queue of the "
            "GPU: no gather runs beside compute",
            "  remedy: unset it (scripts for Megatron set it)"});
  for (const char* value : {"", "-1"}) {
    CHECK(said_of({{"CUDA_VISIBLE_DEVICES", value}}) ==
          Lines{std::string("environment note CUDA_VISIBLE_DEVICES='") + value +
                    "': it hides all GPUs",
                "  remedy: unset it, or list the GPUs to use: 0,1"});
  }
  CHECK(said_of({{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}}).size() == 4);
  CHECK(said_of({{"NCCL_COMM_BLOCKING", "1"}}).front() ==
        "environment note NCCL_COMM_BLOCKING='1': NCCL calls block: if a rank is missing, the "
        "process ends without naming it");
}

TEST_CASE("an order of launches that differs between ranks makes runs fail") {
  Facts facts = sound_machine(2);
  facts.host.variables = {{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}};
  CHECK(objections_to(facts) == Lines{"environment fails NCCL_LAUNCH_ORDER_IMPLICIT='0': "
                                      "collectives of several communicators may deadlock",
                                      "  remedy: unset it: the engine sets 1"});
  CHECK(code_of(facts) == 1);
}

TEST_CASE("what is chosen in NCCL's stead is noted, all in one line") {
  CHECK(said_of({{"NCCL_ALGO", "Ring"}, {"NCCL_DEBUG", "WARN"}, {"NCCL_PROTO", "LL"}}) ==
        Lines{"environment note NCCL_ALGO='Ring', NCCL_PROTO='LL': set, so NCCL does not choose "
              "these settings itself",
              "  remedy: unset the variables that you did not set on purpose",
              "environment ok NCCL_DEBUG='WARN'"});
}

TEST_CASE("GPUs that ranks share need an NCCL that can") {
  const std::vector<Variable> shares{{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}};
  Facts facts = sound_machine(1);
  facts.cuda.nccl.version = 23003;
  CHECK(said_of(shares, facts) == Lines{"environment ok NCCL_MULTI_RANK_GPU_ENABLE='1'"});
  facts.cuda.nccl.version = 22809;
  CHECK(said_of(shares, facts) ==
        Lines{"environment note NCCL_MULTI_RANK_GPU_ENABLE='1': NCCL 2.28.9 does not know this "
              "variable",
              "  remedy: give each rank its own GPU; from NCCL 2.30.3 on, ranks can share a GPU"});
  facts.cuda.nccl.version = 0;  // a missing NCCL is reported in another line
  CHECK(said_of(shares, facts).size() == 1);
}

TEST_CASE("threads are a number, and not more than there are cores") {
  for (const char* good : {"1", "16", "4,2"}) {
    CAPTURE(good);
    CHECK(said_of({{"OMP_NUM_THREADS", good}}).size() == 1);
  }
  for (const char* bad : {"", "0", "-3", "many", "99999999999999999999"}) {
    CAPTURE(bad);
    const Lines said = said_of({{"OMP_NUM_THREADS", bad}});
    REQUIRE(said.size() == 2);
    CHECK(said.front().ends_with("not a number of threads: a rank computes on all cores"));
  }
  CHECK(said_of({{"OMP_NUM_THREADS", "17"}}).front() ==
        "environment note OMP_NUM_THREADS='17': more threads than cores (16)");
}

TEST_CASE("for the CPU only its threads are looked at") {
  CHECK(said_of({{"CUDA_LAUNCH_BLOCKING", "1"},
                 {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"},
                 {"OMP_NUM_THREADS", "2"}},
                machine_without_gpu(),
                DeviceKind::kCpu) == Lines{"environment ok OMP_NUM_THREADS='2'"});
}

TEST_CASE("where MASTER_ADDR is set, it is said whether it resolves") {
  Facts facts = sound_machine(2);
  facts.host.master = {.name = "node0", .addresses = {"10.0.0.5", "fd00::5"}};
  CHECK(said_of({}, facts).back() == "MASTER_ADDR ok 'node0' is 10.0.0.5, fd00::5");
  CHECK(said_of({}, facts, DeviceKind::kCpu).size() == 1);  // a CPU job has one host
  facts.host.master = {.name = "nodo", .why_none = "Name or service not known"};
  CHECK(said_of({}, facts)[1] ==
        "MASTER_ADDR note 'nodo' does not resolve, so ranks of several hosts cannot connect: Name "
        "or service not known");
  facts.host.master->asked = {.how = doctor::TaskEnd::How::kStuck,
                              .failure = {.what = "resolving did not return"}};
  CHECK(said_of({}, facts)[1].ends_with("connect: resolving did not return"));
  CHECK(is_stuck(facts));
  CHECK(code_of(facts) == 0);
}

TEST_CASE("a value of any length is shown in part") {
  const Lines said = said_of({{"NCCL_SOCKET_IFNAME", std::string(1 << 20, 'x')}});
  CHECK(said.front().size() < 300);
  CHECK(said.front().find("(1048576 bytes)") != std::string::npos);
}

}  // namespace
}  // namespace fsdp::testing
