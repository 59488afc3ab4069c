// Tests the facts that are read from the operating system, on this machine.
#include "programs/doctor/host_facts.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

namespace fsdp::doctor {
namespace {

// Lowers a limit of this process to the value while the object exists.
class LoweredLimit {
 public:
  LoweredLimit(__rlimit_resource which, rlim_t value) : which_(which) {
    REQUIRE(getrlimit(which, &before_) == 0);
    const rlimit lowered{.rlim_cur = value, .rlim_max = before_.rlim_max};
    REQUIRE(setrlimit(which, &lowered) == 0);
  }
  ~LoweredLimit() { setrlimit(which_, &before_); }
  LoweredLimit(const LoweredLimit&) = delete;
  LoweredLimit& operator=(const LoweredLimit&) = delete;

 private:
  const __rlimit_resource which_;
  rlimit before_{};
};

TEST_CASE("the driver's version is read from each form that the kernel's module tells it in") {
  CHECK(driver_version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 "
                          "01:15:15 UTC 2023\nGCC version:  gcc version 12.3.0\n") == "535.104.05");
  CHECK(driver_version_in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  "
                          "Release Build  (dvs-builder@U22)\n") == "580.65.06");
  CHECK(driver_version_in("NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86") == "570.86");
  for (const char* text : {"", "\n", "NVRM version: none", "1. .2 1", "GCC\n12.3.0"}) {
    CAPTURE(text);
    CHECK(driver_version_in(text).empty());
  }
}

TEST_CASE("variables are those of CUDA and NCCL that change a run, and the threads, sorted") {
  const char* const environment[] = {
      "OMP_NUM_THREADS=2",     "PATH=/bin",     "NCCL_DEBUG=INFO", "CUDA_HOME=/usr", "NCCL_X",
      "CUDA_VISIBLE_DEVICES=", "XNCCL_DEBUG=1", "NCCL_NET=a=b",    nullptr};
  std::string found;
  for (const Variable& each : variables_of(environment))
    found += each.name + "=" + each.value + ";";
  CHECK(found == "CUDA_VISIBLE_DEVICES=;NCCL_DEBUG=INFO;NCCL_NET=a=b;OMP_NUM_THREADS=2;");
}

TEST_CASE("limits are those of the process") {
  {
    const LoweredLimit files(RLIMIT_NOFILE, 100);
    CHECK(gather_limits().open_files == 100);
  }
  CHECK(gather_limits().open_files.value_or(1000) > 100);
  const LoweredLimit locked(RLIMIT_MEMLOCK, 4096);
  CHECK(gather_limits().locked_bytes == 4096);
}

TEST_CASE("a shared folder tells how much room it has, or why it has none") {
  const SharedFolderFacts room = gather_shared_folder("/dev/shm");
  CHECK(room.why_none.empty());
  CHECK(room.total_bytes > 0);
  CHECK(room.free_bytes <= room.total_bytes);
  CHECK(gather_shared_folder("/no/such/folder").why_none == "No such file or directory");
}

// Runs in a child process, because the signal for a file that is too large must be ignored.
TEST_CASE("memory of a job is tried as a run makes it, and refused as a run would be") {
  CHECK(!try_job_memory());
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_FSIZE, &none);
    const std::optional<ErrorText> refusal = try_job_memory();
    const bool is_told = refusal && refusal->where == "shared memory" && !refusal->hint.empty();
    _exit(is_told ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("memory is the machine's, and its copies take time") {
  const MemoryFacts memory = gather_memory();
  CHECK(memory.total_bytes > memory.free_bytes);
  CHECK(memory.free_bytes > 0);
  CHECK(memory.copied_per_second > 1e8);
  CHECK(memory.copied_per_second < 1e13);
}

TEST_CASE("a name is resolved, or the system says why not") {
  const auto limit = std::chrono::seconds(60);
  const MasterFacts here = gather_master("127.0.0.1", limit);
  CHECK(here.addresses == std::vector<std::string>{"127.0.0.1"});
  CHECK(here.why_none.empty());
  const MasterFacts nowhere = gather_master("no-such-host.invalid", limit);
  CHECK(nowhere.addresses.empty());
  CHECK(!nowhere.why_none.empty());
}

TEST_CASE("the host of the test is told as it is") {
  setenv("NCCL_OF_THIS_TEST", "1", 1);
  const HostFacts host = gather_host();
  unsetenv("NCCL_OF_THIS_TEST");
  CHECK(host.cores >= 1);
  CHECK(host.all_cores >= host.cores);
  CHECK(host.limits.open_files == gather_limits().open_files);
  const bool is_seen = std::ranges::find(host.variables, "NCCL_OF_THIS_TEST", &Variable::name) !=
                       host.variables.end();
  CHECK(is_seen);
}

}  // namespace
}  // namespace fsdp::doctor
