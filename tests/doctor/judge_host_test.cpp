// Tests the findings about a host. They do not depend on its GPUs.
#include <doctest/doctest.h>

#include "doctor/support/machines.h"

namespace fsdp::testing {
namespace {

using doctor::Facts;
using Lines = std::vector<std::string>;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST_CASE("a sound host is said to be, with its figures") {
  CHECK(lines_of(judge_host(sound_machine(2), DeviceKind::kCuda)) ==
        Lines{"versions ok fsdp 0.1.0, built with CUDA 13.2.86; LibTorch 2.15.0", "cores ok 16",
              "memory ok 512.0 GiB, 500.0 GiB free; one core copies 12.5 GB/s",
              "processes ok ranks that are processes can share their memory",
              "/dev/shm ok 31.0 GiB free of 32.0 GiB",
              "limits ok ulimit -l unlimited, -n 65536, -u 96343, -v unlimited"});
}

TEST_CASE("for the CPU nothing is looked at that GPUs alone need") {
  Facts facts = sound_machine(2);
  facts.host.limits.locked_bytes = 8 * kMiB;
  facts.host.limits.address_bytes = 1024 * kMiB;
  facts.host.shared_folder = {.why_none = "No such file or directory"};
  CHECK(lines_of(judge_host(facts, DeviceKind::kCpu)) ==
        Lines{"versions ok fsdp 0.1.0, built with CUDA 13.2.86; LibTorch 2.15.0", "cores ok 16",
              "memory ok 512.0 GiB, 500.0 GiB free; one core copies 12.5 GB/s",
              "dtypes ok the processor multiplies float32, bfloat16; float16 by way of float32",
              "processes ok ranks that are processes can share their memory",
              "limits ok ulimit -l 8.0 MiB, -n 65536, -u 96343, -v 1.0 GiB"});
}

TEST_CASE("a container's part of cores and memory is said, and what it lacks") {
  Facts facts = sound_machine(1);
  facts.host.cores = 8;
  facts.host.container = {
      .memory_bytes = 64 * 1024 * kMiB, .free_bytes = 63 * 1024 * kMiB, .cores = 2.5};
  const Lines lines = lines_of(judge_host(facts, DeviceKind::kCuda));
  CHECK(lines[1] == "cores note 8 of 16, of which the container may use 2.5");
  CHECK(lines[2] ==
        "  remedy: set OMP_NUM_THREADS so that all ranks together have at most so many threads");
  CHECK(lines[3] ==
        "memory ok 512.0 GiB, 500.0 GiB free; the container may use 64.0 GiB, 63.0 GiB free; one "
        "core copies 12.5 GB/s");
  facts.host.container.cores = 8;
  CHECK(objections_to(facts).empty());
}

TEST_CASE("types that are fast are said where ranks compute on the CPU") {
  Facts facts = machine_without_gpu();
  const auto dtypes = [&](DeviceKind device) {
    for (const std::string& line : lines_of(judge_host(facts, device))) {
      if (line.starts_with("dtypes")) return line;
    }
    return std::string();
  };
  facts.host.products = {};
  CHECK(dtypes(DeviceKind::kCpu) ==
        "dtypes ok the processor multiplies float32; bfloat16, float16 by way of float32");
  facts.host.products = {.bfloat16 = true, .float16 = true};
  CHECK(dtypes(DeviceKind::kAuto) ==
        "dtypes ok the processor multiplies float32, bfloat16, float16");
  CHECK(dtypes(DeviceKind::kCuda).empty());
  facts = sound_machine(1);
  CHECK(dtypes(DeviceKind::kAuto).empty());
}

TEST_CASE("another LibTorch than the one that was built with makes runs fail") {
  Facts facts = sound_machine(1);
  for (const auto& [loaded, fits] :
       {std::pair{"2.15.3", true}, {"2.1.5", false}, {"2.11.0", false}, {"2.150.0", false}}) {
    CAPTURE(loaded);
    facts.versions.torch_loaded = loaded;
    CHECK(objections_to(facts).empty() == fits);
  }
  CHECK(objections_to(facts) ==
        Lines{"versions fails fsdp 0.1.0, built with CUDA 13.2.86; LibTorch 2.150.0 is loaded, "
              "built with 2.15",
              "  remedy: check LD_LIBRARY_PATH, or build with the LibTorch that is loaded"});
  CHECK(code_of(facts) == 1);
}

TEST_CASE("a build without the GPU's part says so") {
  Facts facts = machine_without_gpu();
  facts.versions.cuda_built.clear();
  CHECK(lines_of(facts, DeviceKind::kCpu).front() ==
        "versions ok fsdp 0.1.0, without the GPU's part; LibTorch 2.15.0");
}

TEST_CASE("where processes cannot share memory their runs fail, with the system's reason") {
  Facts facts = sound_machine(1);
  facts.host.job_memory_refusal = {.what = "memfd_create failed",
                                   .where = "shared memory",
                                   .cause = "Function not implemented",
                                   .hint = "check the limits"};
  const Lines wanted{
      "processes fails memfd_create failed (shared memory); Function not implemented",
      "  remedy: check the limits"};
  for (const DeviceKind device : {DeviceKind::kCuda, DeviceKind::kAuto, DeviceKind::kCpu}) {
    CHECK(objections_to(facts, device) == wanted);
    CHECK(code_of(facts, device) == 1);
  }
  facts.host.job_memory_refusal->hint.clear();
  CHECK(objections_to(facts).back() ==
        "  remedy: run ranks as threads of one process (Mesh::local)");
}

TEST_CASE("little room in /dev/shm is noted where NCCL takes of it") {
  for (const int gpus : {1, 2}) {
    Facts facts = sound_machine(gpus);
    facts.host.shared_folder = {.total_bytes = 64 * kMiB, .free_bytes = 63 * kMiB};
    const Lines wanted{"/dev/shm note 63.0 MiB free of 64.0 MiB; NCCL may need up to 1.0 GiB",
                       "  remedy: give a container more (--shm-size=1g), or mount a larger tmpfs "
                       "there"};
    CHECK(objections_to(facts) == (gpus > 1 ? wanted : Lines{}));
    facts.host.shared_folder = {.why_none = "No such file or directory"};
    CHECK(objections_to(facts).empty() == (gpus == 1));
    CHECK(code_of(facts) == 0);
  }
  Facts enough = sound_machine(2);
  enough.host.shared_folder.free_bytes = 1024 * kMiB;
  CHECK(objections_to(enough).empty());
}

TEST_CASE("each limit that is low is noted by itself, the others share a line") {
  struct Low {
    std::optional<int64_t> doctor::LimitFacts::*limit;
    int64_t value;
    std::string said;
  };
  for (const auto& [limit, value, said] :
       {Low{&doctor::LimitFacts::locked_bytes, 8 * kMiB, "ulimit -l 8.0 MiB: "},
        Low{&doctor::LimitFacts::open_files, 1023, "ulimit -n 1023: "},
        Low{&doctor::LimitFacts::processes, 1023, "ulimit -u 1023: "},
        Low{&doctor::LimitFacts::address_bytes, 64 * kMiB, "ulimit -v 64.0 MiB: "}}) {
    CAPTURE(said);
    Facts facts = sound_machine(1);
    facts.host.limits.*limit = value;
    const Lines objections = objections_to(facts);
    REQUIRE(objections.size() == 2);
    CHECK(objections.front().starts_with("limits note " + said));
    CHECK(code_of(facts) == 0);
    facts.host.limits.*limit = 1024 * kMiB;  // too low a limit on address space
    CHECK(objections_to(facts).empty() == (limit != &doctor::LimitFacts::address_bytes));
  }
}

TEST_CASE("where all limits are low no line is left for the others") {
  Facts facts = sound_machine(1);
  facts.host.limits = {.locked_bytes = 1, .open_files = 1, .processes = 1, .address_bytes = 1};
  const Lines objections = objections_to(facts);
  CHECK(objections.size() == 8);
  for (const std::string& line : lines_of(facts, DeviceKind::kCuda)) {
    CHECK(!line.starts_with("limits ok"));
  }
}

}  // namespace
}  // namespace fsdp::testing
