// Tests the findings of fsdp-doctor on simulated GPUs, if all is well and if a call fails or hangs.
#include <doctest/doctest.h>

#include <future>
#include <string>

#include "doctor/support/machines.h"
#include "doctor_simulated/support/simulated_machine.h"
#include "support/sanitizers.h"

using namespace fsdp;
using namespace fsdp::testing;
using fsdp::doctor::Facts;
using fsdp::doctor::TaskEnd;
using std::chrono::milliseconds;

namespace {

const std::vector<std::string> kNone;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Checks that exactly one finding fails, and that it has this text and a remedy.
void check_fails(const Facts& facts, std::string_view area, std::string_view text) {
  const std::vector<std::string> objections = objections_to(facts);
  std::string all;
  for (const std::string& each : objections) all += each + "\n";
  CAPTURE(all);
  REQUIRE(objections.size() >= 2);
  CHECK(objections[0].starts_with(std::string(area) + " fails "));
  CHECK(contains(objections[0], text));
  CHECK(objections[1].size() > std::string_view("  remedy: ").size());
}

// Checks that no GPU can be used. The error line must give the reason and a remedy, and no finding
// may repeat it.
void check_no_gpu(const Facts& facts, std::string_view text) {
  const ErrorText why = doctor::explain_no_gpu(facts);
  CAPTURE(why.what);
  CHECK(contains(why.what + "; " + why.cause, text));
  CHECK(!why.hint.empty());
  CHECK(objections_to(facts) == kNone);
}

}  // namespace

TEST_CASE("one, two and four sound GPUs are ready, whatever the schedule") {
  for (const int gpus : {1, 2, 4}) {
    for (const uint32_t seed : {1U, 2U, 3U}) {
      CAPTURE(gpus);
      CAPTURE(seed);
      SimulatedMachine machine(gpus, seed);
      const Facts facts = machine.examine();
      CHECK(objections_to(facts) == kNone);
      CHECK(code_of(facts) == 0);
      CHECK(facts.loopback.ranks == gpus);
      CHECK(machine.nccl().calls("ncclAllGather") == (gpus > 1 ? gpus : 0));
      CHECK(machine.nccl().calls("ncclReduceScatter") == (gpus > 1 ? gpus : 0));
      CHECK(machine.gpu().take_reports() == kNone);
      CHECK(machine.gpu().left() == kNone);
    }
  }
}

TEST_CASE("what GPUs tell about themselves is printed") {
  SimulatedMachine machine(2);
  const Facts facts = machine.examine();
  CHECK(facts.cuda.gpus.at(1).device.uuid == "GPU-73696d75-6c61-7465-6420-310000000000");
  const std::vector<std::string> said = lines_of(judge_gpus(facts, DeviceKind::kCuda));
  REQUIRE(said.size() == 7);
  CHECK(said[1] == "cuda:0 ok simulated GPU (8.0), 256.0 MiB free of 256.0 MiB, 0000:01:00.0");
  CHECK(said[2].starts_with("cuda:1 ok simulated GPU (8.0), "));
  CHECK(contains(said[2], "0000:02:00.0"));
  CHECK(said[4] == "peers ok each of 2 GPUs reaches the others' memory");
  CHECK(said[5].starts_with("NCCL ok 2.30.7, "));
}

TEST_CASE("a CUDA call that fails while the only GPU is looked at leaves none") {
  for (const char* name : {"cudaGetDeviceCount", "cudaGetDeviceProperties",
                           "cudaDeviceGetAttribute", "cudaDeviceGetPCIBusId", "cudaMemGetInfo",
                           "cudaFuncGetAttributes", "cudaStreamCreateWithPriority"}) {
    CAPTURE(name);
    SimulatedMachine machine(1);
    machine.gpu().fail(name, 1, cudaErrorUnknown);
    const Facts facts = machine.examine();
    if (std::string_view(name) == "cudaGetDeviceCount") {
      check_no_gpu(facts, "unknown error");
    } else {
      check_fails(facts, "cuda:0", "unknown error");
    }
    CHECK(code_of(facts) == 78);
    CHECK(facts.loopback.ranks == 0);
    CHECK(machine.gpu().take_reports() == kNone);
  }
}

TEST_CASE("a CUDA call that fails before a GPU is looked at is CUDA's fault, and no GPU's") {
  for (const char* name :
       {"cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaDeviceCanAccessPeer"}) {
    CAPTURE(name);
    SimulatedMachine machine(2);
    machine.gpu().fail(name, 1, cudaErrorUnknown);
    const Facts facts = machine.examine();
    check_no_gpu(facts, std::string(name) + " failed: unknown error");
    CHECK(code_of(facts) == 78);
  }
}

TEST_CASE("one of two GPUs that cannot be opened is named, and makes runs fail") {
  SimulatedMachine machine(2);
  machine.gpu().fail("cudaGetDeviceProperties", 2, cudaErrorUnknown);
  const Facts facts = machine.examine();
  check_fails(facts, "cuda:1", "cudaGetDeviceProperties failed: unknown error");
  CHECK(objections_to(facts).at(2) == "loopback note not run: cuda:1 cannot be used");
  CHECK(code_of(facts) == 1);
}

TEST_CASE("a CUDA call that fails in the loopback makes runs fail, and leaves nothing behind") {
  for (const int gpus : {1, 2}) {
    for (const char* name :
         {"cudaMalloc", "cudaHostAlloc", "cudaMemcpyAsync", "cudaLaunchKernel"}) {
      CAPTURE(gpus);
      CAPTURE(name);
      SimulatedMachine machine(gpus);
      machine.on_ranks([&] { machine.gpu().fail(name, 1, cudaErrorUnknown); });
      const Facts facts = machine.examine();
      CHECK(facts.loopback.end.how == TaskEnd::How::kFailed);
      check_fails(facts, "loopback", "unknown error");
      CHECK(code_of(facts) == 1);
      CHECK(machine.gpu().take_reports() == kNone);
      CHECK(machine.gpu().left() == kNone);
    }
  }
}

TEST_CASE("a GPU that is lost in the loopback makes runs fail") {
  SimulatedMachine machine(1);
  machine.on_ranks([&] { machine.gpu().fail("cudaLaunchKernel", 1, cudaErrorIllegalAddress); });
  check_fails(machine.examine(), "loopback", "an illegal memory access was encountered");
}

TEST_CASE("values that are wrong name the GPU, the element and both values") {
  SimulatedMachine machine(1);
  // The copy to the GPU is left out. Then the kernel doubles the zeros in its memory.
  machine.on_ranks([&] { machine.gpu().leave_out("cudaMemcpyAsync", 1); });
  check_fails(machine.examine(), "loopback", "a kernel on cuda:0 left 0 in element 1, expected 2");
}

TEST_CASE("values that do not arrive from another GPU are noticed") {
  SimulatedMachine machine(2);
  machine.on_ranks([&] {
    for (const int64_t n : {1, 2}) {
      machine.nccl().script({.name = "ncclAllGather", .n = n, .result = nccl::Result::kSuccess});
    }
  });
  const Facts facts = machine.examine();
  check_fails(facts, "loopback", "all_gather on cuda:");
  CHECK(contains(objections_to(facts).at(1), "NCCL_P2P_DISABLE=1 to test the link"));
}

TEST_CASE("a call that NCCL refuses makes runs fail, with what NCCL says") {
  for (const char* name : {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
    CAPTURE(name);
    SimulatedMachine machine(2);
    machine.nccl().script({.name = name});
    const Facts facts = machine.examine();
    check_fails(facts, "loopback", "system error");
    CHECK(contains(objections_to(facts).at(0), name));
    CHECK(machine.gpu().take_reports() == kNone);
  }
  for (const char* name :
       {"ncclGroupStart", "ncclAllGather", "ncclReduceScatter", "ncclGroupEnd"}) {
    CAPTURE(name);
    SimulatedMachine machine(4);
    machine.on_ranks([&] { machine.nccl().script({.name = name}); });
    const Facts facts = machine.examine();
    check_fails(facts, "loopback", "system error");
    CHECK(contains(objections_to(facts).at(1), "set NCCL_DEBUG=WARN to see NCCL's own messages"));
    CHECK(code_of(facts) == 1);
    CHECK(machine.gpu().take_reports() == kNone);
  }
}

TEST_CASE("collectives that never end are left when the ranks' time is over") {
  SimulatedMachine machine(2);
  // Under a sanitizer the kernel before the collectives needs part of the time.
  machine.wait_at_most(milliseconds(kSanitized ? 5000 : 200));
  machine.on_ranks([&] { machine.nccl().hang_collectives(); });
  const Facts facts = machine.examine();
  CHECK(facts.loopback.end.how == TaskEnd::How::kFailed);
  check_fails(facts, "loopback",
              kSanitized ? "NCCL did not finish within 5.0 s" : "NCCL did not finish within 0.2 s");
  CHECK(machine.gpu().take_reports() == kNone);
}

TEST_CASE("a call of NCCL that hangs is told by its name, and the program goes on to its end") {
  for (const char* name : {"ncclCommInitRankConfig", "ncclGroupEnd"}) {
    CAPTURE(name);
    SimulatedMachine machine(2);
    machine.wait_at_most(milliseconds(1000));  // under a sanitizer the kernel needs part of this
    const auto hang = [&] {
      machine.nccl().script({.name = name, .wrong = sim::NcclWrong::kHangs});
    };
    const bool connects = std::string_view(name) == "ncclCommInitRankConfig";
    if (connects) {
      hang();
    } else {
      machine.on_ranks(hang);
    }
    const Facts facts = machine.examine();
    CHECK(facts.loopback.end.how == TaskEnd::How::kStuck);
    CHECK(is_stuck(facts));
    check_fails(facts, "loopback", "did not return");
    CHECK(contains(objections_to(facts).at(0), name));
    CHECK(code_of(facts) == 1);
    machine.let_go(facts);
    machine.gpu().take_reports();  // drops reports about resources of the released threads
  }
}

TEST_CASE("a loopback that is too slow as a whole is left") {
  SimulatedMachine machine(2);
  std::promise<void> go_on;
  machine.on_ranks([&] { go_on.get_future().wait(); });
  const Facts facts = machine.examine({.loopback = milliseconds(100)});
  CHECK(is_stuck(facts));
  check_fails(facts, "loopback", "the loopback did not return within 0.1 s");
  go_on.set_value();
  machine.let_go(facts);
}
