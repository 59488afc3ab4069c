// Tests the conversion of a library's results to facts. No library is loaded.
#include "programs/doctor/gpu_source.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"
#include "programs/doctor/doctor.h"
#include "runtime/device.h"

namespace fsdp::doctor {
namespace {

// A library that reports three GPUs. The first is too old, and the second does not even report its
// properties.
constexpr CudaLibrary kThreeGpus{
    .open_device = [](int ordinal) -> std::unique_ptr<Device> {
      if (ordinal == 0) throw DeviceError({.what = "too old", .hint = "use another one"});
      return nullptr;
    },
    .device_bus = [](int ordinal) { return "bus " + std::to_string(ordinal); },
    .versions = [] { return CudaVersions{.driver = 13010, .runtime = 13020}; },
    .device_facts = [](int ordinal) -> CudaDeviceFacts {
      if (ordinal == 1) throw DeviceError({.what = "lost"});
      return {.name = "GPU " + std::to_string(ordinal), .major = 9, .memory_bytes = 1000};
    },
    .device_free_bytes = [](int ordinal) { return int64_t{100} * ordinal; },
    .leave_device = [](int) {},
    .reaches = [](int from, int to) { return from < to; }};

GpuSource source_of(int count) {
  return {
      .devices = [count] { return CudaDevices{.count = count, .why_none = "why", .hint = "do"}; },
      .library = []() -> const CudaLibrary& { return kThreeGpus; },
      .nccl = []() -> const nccl::Library& {
        throw DeviceError({.what = "libnccl.so.2 is not loaded", .hint = "set it up"});
      },
      .loop_back = {}};
}

TEST_CASE("without devices nothing else is asked") {
  GpuSource source = source_of(0);
  source.library = nullptr;
  source.nccl = nullptr;
  const CudaFacts facts = gather_cuda(source);
  CHECK(facts.gpus.empty());
  CHECK(facts.why_none == "why");
  CHECK(facts.hint == "do");
}

TEST_CASE("of each GPU is kept what it tells, and why it cannot be used") {
  const CudaFacts facts = gather_cuda(source_of(3));
  REQUIRE(facts.gpus.size() == 3);
  CHECK(facts.gpus[0].device.name == "GPU 0");
  CHECK(facts.gpus[0].bus == "bus 0");
  CHECK(facts.gpus[0].refusal->what == "too old");
  CHECK(facts.gpus[0].refusal->hint == "use another one");
  CHECK(facts.gpus[1].device.name.empty());
  CHECK(facts.gpus[1].refusal->what == "lost");
  CHECK(facts.gpus[2].ordinal == 2);
  CHECK(facts.gpus[2].device.memory_bytes == 1000);
  CHECK(facts.gpus[2].free_bytes == 200);
  CHECK(!facts.gpus[2].refusal);
  CHECK(facts.versions.driver == 13010);
  CHECK(facts.versions.runtime == 13020);
  CHECK(facts.reaches == std::vector<std::vector<bool>>{
                             {true, true, true}, {false, true, true}, {false, false, true}});
  CHECK(facts.nccl.version == 0);
  CHECK(facts.nccl.refusal->what == "libnccl.so.2 is not loaded");
}

TEST_CASE("no loopback is run where it is no use") {
  Facts facts;
  gather_gpus(facts, source_of(3));  // its loop_back throws if called
  CHECK(facts.cuda.asked.how == TaskEnd::How::kDone);
  CHECK(facts.loopback.ranks == 0);
  CHECK(!is_stuck(facts));
}

TEST_CASE("CUDA that throws, or hangs, where it is asked is a fact") {
  GpuSource source = source_of(3);
  source.devices = []() -> CudaDevices { throw DeviceError({.what = "no answer"}); };
  Facts facts;
  gather_gpus(facts, source);
  CHECK(facts.cuda.asked.how == TaskEnd::How::kFailed);
  CHECK(facts.cuda.asked.failure.what == "no answer");
  CHECK(!is_stuck(facts));

  std::promise<void> go_on;
  source.devices = [may_go_on = go_on.get_future().share()] {
    may_go_on.wait();
    return CudaDevices{};
  };
  gather_gpus(facts, source, {.asking = std::chrono::milliseconds(10)});
  CHECK(facts.cuda.asked.how == TaskEnd::How::kStuck);
  CHECK(facts.cuda.asked.failure.what == "asking CUDA about the GPUs did not return within 0.0 s");
  CHECK(is_stuck(facts));
  go_on.set_value();
  facts.cuda.asked.ended.wait();
}

}  // namespace
}  // namespace fsdp::doctor
