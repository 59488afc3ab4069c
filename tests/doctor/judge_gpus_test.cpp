// Tests the findings about GPUs, and about machines without a GPU.
#include <doctest/doctest.h>

#include "doctor/support/machines.h"

namespace fsdp::testing {
namespace {

using doctor::Facts;
using doctor::TaskEnd;
using Lines = std::vector<std::string>;

constexpr int64_t kGiB = int64_t{1} << 30;

Lines said_of_gpus(const Facts& facts) { return lines_of(judge_gpus(facts, DeviceKind::kCuda)); }

TEST_CASE("a machine with one GPU is ready") {
  const Facts facts = sound_machine(1);
  CHECK(said_of_gpus(facts) ==
        Lines{"driver ok 580.65.06, for CUDA 13.2; the CUDA runtime is 13.2",
              "cuda:0 ok NVIDIA H100 80GB HBM3 (9.0), 78.0 GiB free of 79.0 GiB, 0000:01:00.0",
              "kernels ok the engine's kernels are loaded when it opens a GPU, others when they "
              "first run",
              "NCCL ok 2.30.7, 2.26 or newer is needed; it supports several ranks on one GPU; "
              "2.31.2 or newer supports registered windows (Options::tuning.nccl_registration)",
              "loopback ok cuda:0, a kernel and copies (one GPU makes no communicator): values are "
              "right"});
  CHECK(code_of(facts) == 0);
  CHECK(verdict_of(facts, DeviceKind::kCuda, {}).line == "ready on one GPU");
}

TEST_CASE("a machine with eight GPUs is ready") {
  const Facts facts = sound_machine(8);
  CHECK(objections_to(facts).empty());
  const Lines said = said_of_gpus(facts);
  CHECK(said.size() == 1 + 8 + 4);
  CHECK(said[8].starts_with("cuda:7 ok "));
  CHECK(said[10] == "peers ok each of 8 GPUs reaches the others' memory");
  CHECK(said[12] == "loopback ok 8 ranks, a GPU each, by NCCL: values are right");
  CHECK(verdict_of(facts, DeviceKind::kAuto, {}).line == "ready on 8 GPUs");
}

TEST_CASE("without a driver there is no GPU: that is the error where GPUs were asked for") {
  const Facts facts = machine_without_gpu();
  CHECK(said_of_gpus(facts).empty());  // each fact is reported only once
  const ErrorText why = doctor::explain_no_gpu(facts);
  CHECK(why.what ==
        "no NVIDIA driver (libcuda.so.1 was not found), and its kernel module is not loaded");
  CHECK(why.hint == "install NVIDIA's driver on the host; check it with nvidia-smi");
  CHECK(code_of(facts) == 78);
  CHECK(verdict_of(facts, DeviceKind::kCuda, {}).line.empty());
}

TEST_CASE("without a GPU runs that may take the CPU go on, and those for the CPU ask nothing") {
  const Facts facts = machine_without_gpu();
  const Lines noted = objections_to(facts, DeviceKind::kAuto);
  REQUIRE(noted.size() == 2);
  CHECK(noted[0].starts_with("GPUs note no NVIDIA driver"));
  CHECK(objections_to(facts, DeviceKind::kCpu).empty());
  for (const DeviceKind device : {DeviceKind::kAuto, DeviceKind::kCpu}) {
    CHECK(code_of(facts, device) == 0);
    CHECK(verdict_of(facts, device, {}).line == "ready on the CPU");
  }
}

TEST_CASE("where the host's driver runs, a library that is missing was not passed in") {
  Facts facts = machine_without_gpu();
  facts.host.driver_module = "580.65.06";
  CHECK(said_of_gpus(facts) == Lines{"driver ok 580.65.06, as a module of the kernel"});
  CHECK(objections_to(facts, DeviceKind::kAuto) ==
        Lines{"GPUs note no NVIDIA driver (libcuda.so.1 was not found)",
              "  remedy: start the container with GPUs (--gpus all, NVIDIA's container toolkit): "
              "the host's driver runs, but its libraries are missing here"});
  facts.cuda.why_none = "this build has no GPU part (libfsdp_cuda.so was not found)";
  facts.cuda.hint.clear();
  CHECK(doctor::explain_no_gpu(facts).hint == "run nvidia-smi for details");
}

TEST_CASE("CUDA that does not answer fails, whatever was asked for") {
  Facts facts = machine_without_gpu();
  facts.host.driver_module = "580.65.06";
  facts.cuda = {.asked = {.how = TaskEnd::How::kStuck,
                          .failure = {.what = "asking CUDA did not return within 60.0 s"}}};
  const Lines said = objections_to(facts, DeviceKind::kAuto);
  REQUIRE(said.size() == 2);
  CHECK(said[0] == "GPUs fails asking CUDA did not return within 60.0 s");
  CHECK(said[1].starts_with("  remedy: look for a broken GPU or driver"));
  CHECK(code_of(facts, DeviceKind::kAuto) == 1);
  CHECK(code_of(facts, DeviceKind::kCuda) == 78);
  CHECK(doctor::why_no_gpu(facts.cuda)->what == "asking CUDA did not return within 60.0 s");
}

TEST_CASE("a driver that is older than the runtime runs what was compiled for the GPU") {
  Facts facts = sound_machine(1);
  facts.cuda.versions.driver = 13000;
  CHECK(objections_to(facts) ==
        Lines{"driver note 580.65.06, for CUDA 13.0; the CUDA runtime is 13.2: kernels that are "
              "compiled for the GPU run, PTX does not",
              "  remedy: install a newer driver if no kernel is compiled for your GPU"});
  facts = sound_machine(1);
  facts.host.driver_module.clear();
  CHECK(said_of_gpus(facts).front() ==
        "driver ok of unknown version, for CUDA 13.2; the CUDA runtime is 13.2");
}

TEST_CASE("a GPU among several that cannot be used makes runs fail, and no loopback is run") {
  Facts facts = sound_machine(2);
  facts.loopback = {};
  facts.cuda.gpus[1].device = {
      .name = "NVIDIA T4", .major = 7, .minor = 5, .memory_bytes = 15 * kGiB};
  facts.cuda.gpus[1].refusal = {.what = "cuda:1 has compute capability 7.5, expected 8.0 or newer",
                                .hint = "use a GPU of the Ampere generation or newer"};
  CHECK(objections_to(facts) == Lines{"cuda:1 fails NVIDIA T4 (7.5), 15.0 GiB, 0000:02:00.0: "
                                      "cuda:1 has compute capability 7.5, expected 8.0 or newer",
                                      "  remedy: use a GPU of the Ampere generation or newer",
                                      "loopback note not run: cuda:1 cannot be used",
                                      "  remedy: fix this problem first"});
  CHECK(code_of(facts) == 1);
  CHECK(code_of(facts, DeviceKind::kAuto) == 1);
}

TEST_CASE("where no GPU can be used of those that are there, there is none") {
  Facts facts = sound_machine(1);
  facts.loopback = {};
  facts.cuda.gpus[0].device.name.clear();
  facts.cuda.gpus[0].refusal = {.what = "cudaGetDeviceProperties failed: unknown error"};
  const Lines said = objections_to(facts);
  REQUIRE(said.size() == 2);
  CHECK(said[0] == "cuda:0 fails cudaGetDeviceProperties failed: unknown error");
  CHECK(said[1].starts_with("  remedy: look for a broken GPU or driver"));
  CHECK(code_of(facts) == 78);
  CHECK(objections_to(facts, DeviceKind::kAuto).front().starts_with("cuda:0 note "));
  CHECK(code_of(facts, DeviceKind::kAuto) == 0);
}

TEST_CASE("who may compute on a GPU is told") {
  Facts facts = sound_machine(1);
  facts.cuda.gpus[0].device.mode = CudaDeviceFacts::Mode::kOneProcess;
  CHECK(objections_to(facts).empty());
  CHECK(said_of_gpus(facts)[1].ends_with(", 0000:01:00.0, for one process at a time"));
  facts.cuda.gpus[0].device.mode = CudaDeviceFacts::Mode::kProhibited;
  facts.cuda.gpus[0].refusal = {.what = "cudaMalloc failed: all devices are busy or unavailable"};
  CHECK(objections_to(facts).at(1) == "  remedy: nvidia-smi -i 0000:01:00.0 -c DEFAULT");
}

TEST_CASE("memory that others hold is noted from a fifth on") {
  Facts facts = sound_machine(1);
  facts.cuda.gpus[0].device.memory_bytes = 80 * kGiB;
  facts.cuda.gpus[0].free_bytes = 64 * kGiB;
  CHECK(objections_to(facts).empty());
  facts.cuda.gpus[0].free_bytes -= 1;
  CHECK(objections_to(facts).size() == 2);
  CHECK(objections_to(facts)[0] ==
        "cuda:0 note NVIDIA H100 80GB HBM3 (9.0), 64.0 GiB free of 80.0 GiB, 0000:01:00.0: other "
        "processes use it");
  CHECK(code_of(facts) == 0);
}

TEST_CASE("modules that are loaded eagerly are noted") {
  Facts facts = sound_machine(1);
  facts.host.variables = {{"CUDA_MODULE_LOADING", "LAZY"}};
  CHECK(objections_to(facts).empty());
  facts.host.variables = {{"CUDA_MODULE_LOADING", "EAGER"}};
  CHECK(objections_to(facts).at(0).starts_with("kernels note CUDA_MODULE_LOADING=EAGER loads all"));
}

TEST_CASE("GPUs that do not reach each other are named, each way") {
  Facts facts = sound_machine(3);
  facts.cuda.reaches = {{true, true, false}, {true, true, true}, {false, false, true}};
  CHECK(objections_to(facts).at(0) ==
        "peers note 0 reaches 1, not 2; 2 reaches none: between those NCCL uses the host's memory");
  CHECK(code_of(facts) == 0);
}

TEST_CASE("NCCL is needed between GPUs, and missed by one alone") {
  for (const int gpus : {1, 2}) {
    Facts facts = sound_machine(gpus);
    facts.cuda.nccl = {
        .refusal = ErrorText{.what = "NCCL 2.17.1 is too old", .hint = "use NCCL 2.26.0 or newer"}};
    if (gpus > 1) facts.loopback = {};
    CHECK(doctor::why_no_loopback(facts.cuda) == (gpus > 1 ? "no usable NCCL was found" : ""));
    const Lines said = objections_to(facts);
    REQUIRE(said.size() == (gpus > 1 ? 4 : 2));
    CHECK(
        said[0] ==
        (gpus > 1
             ? "NCCL fails NCCL 2.17.1 is too old"
             : "NCCL note NCCL 2.17.1 is too old; on one GPU ranks are threads and need no NCCL"));
    CHECK(said[1] == "  remedy: use NCCL 2.26.0 or newer");
    CHECK(code_of(facts) == (gpus > 1 ? 1 : 0));
  }
}

TEST_CASE("what other versions of NCCL would add is told") {
  const auto said_of = [](int version) {
    Facts facts = sound_machine(1);
    facts.cuda.nccl.version = version;
    CHECK(objections_to(facts).empty());
    return said_of_gpus(facts).at(3);
  };
  CHECK(said_of(22809) ==
        "NCCL ok 2.28.9, 2.26 or newer is needed; 2.30.3 or newer supports several ranks on one "
        "GPU; 2.31.2 or newer supports registered windows (Options::tuning.nccl_registration)");
  CHECK(
      said_of(23102) ==
      "NCCL ok 2.31.2, 2.26 or newer is needed; it supports several ranks on one GPU; it supports "
      "registered windows (Options::tuning.nccl_registration)");
}

TEST_CASE("a loopback that fails, or hangs, makes runs fail, with its own hint or ours") {
  Facts facts = sound_machine(4);
  facts.loopback.end = {.how = TaskEnd::How::kFailed,
                        .failure = {.what = "NCCL did not finish within 20.0 s",
                                    .where = "NCCL communicator 'gather'",
                                    .cause = "a rank did not issue the collective",
                                    .hint = "set NCCL_DEBUG=INFO"}};
  const std::string said =
      "loopback fails 4 ranks, a GPU each, by NCCL: NCCL did not finish within 20.0 s (NCCL "
      "communicator 'gather'); a rank did not issue the collective";
  CHECK(objections_to(facts) == Lines{said, "  remedy: set NCCL_DEBUG=INFO"});
  CHECK(code_of(facts) == 1);
  const std::string ours =
      "  remedy: look for a broken GPU or driver in nvidia-smi and dmesg (Xid); ";
  facts.loopback.end.how = TaskEnd::How::kStuck;
  CHECK(objections_to(facts).at(0) == said);
  CHECK(objections_to(facts).at(1).starts_with(ours));
  CHECK(code_of(facts) == 1);
  facts.loopback.end.how = TaskEnd::How::kFailed;
  facts.loopback.end.failure.hint.clear();
  CHECK(objections_to(facts).at(1).starts_with(ours));
}

}  // namespace
}  // namespace fsdp::testing
