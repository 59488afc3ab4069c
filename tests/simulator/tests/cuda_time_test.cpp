// Tests the virtual time of streams: waits determine when work starts, in every schedule.
#include <doctest/doctest.h>

#include <array>
#include <memory>

#include "kernels/cuda/kernels.h"
#include "kernels/pause.h"
#include "runtime/cuda/cuda_device.h"
#include "simulator/cuda/simulated_gpu.h"

using namespace fsdp;
using namespace fsdp::testing::sim;

namespace {

// A stream that works for given times, and reports when its work ended.
class Worker {
 public:
  Worker(const CudaDevice& device, const char* name)
      : stream_(device.make_stream({.name = name})),
        mark_(device.allocate(sizeof(int64_t), MemoryKind::kDevice)),
        done_(device.make_event()) {}

  void work(int64_t ns) {
    kernels::mark_time(*stream_, mark());
    kernels::pause_since(*stream_, {mark(), 1}, ns);
    stream_->record(done_);
  }
  void wait_for(const Worker& other) { stream_->wait(other.done_); }
  int64_t now() {
    kernels::mark_time(*stream_, mark());
    int64_t ns = 0;
    stream_->read(&ns, mark(), sizeof ns);
    return ns;
  }

 private:
  int64_t* mark() const { return static_cast<int64_t*>(mark_.data()); }

  const std::unique_ptr<Stream> stream_;
  const Buffer mark_;
  Event done_;
};

}  // namespace

TEST_CASE("work starts when all that it waits for is done, in every schedule") {
  for (const Schedule schedule : kAllSchedules) {
    for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
      SimulatedGpu gpu({.seed = seed, .schedule = schedule});
      const CudaDevice device(0, kernels::cuda::kernel_table());
      Worker first(device, "first"), one(device, "one"), other(device, "other");
      first.work(100);
      one.wait_for(first);
      one.work(50);
      first.work(25);   // issued after the work that `one` waits for
      other.work(120);  // concurrent with both
      other.wait_for(one);
      other.work(7);
      CHECK(other.now() == 157);
      CHECK(one.now() == 157);  // starts later, because the host has waited for `other`
      CHECK(first.now() == 157);
      CHECK(gpu.take_reports().empty());
    }
  }
}

TEST_CASE("streams that nothing orders run beside each other, and a wait for the past costs none") {
  SimulatedGpu gpu({.seed = 9});
  const CudaDevice device(0, kernels::cuda::kernel_table());
  Worker short_one(device, "short"), long_one(device, "long");
  for (int i = 0; i < 5; ++i) {
    short_one.work(10);
    long_one.work(1000);
    long_one.wait_for(short_one);
  }
  CHECK(short_one.now() == 50);
  CHECK(long_one.now() == 5000);
}

TEST_CASE("timed events tell what a stream has slept between them") {
  const SimulatedGpu gpu;
  const CudaDevice device(0, kernels::cuda::kernel_table());
  const auto stream = device.make_stream({.name = "timed"});
  const Buffer mark = device.allocate(sizeof(int64_t), MemoryKind::kDevice);
  auto* const ns = static_cast<int64_t*>(mark.data());
  std::array<int64_t, 2> told{};
  stream->tell_time([&](int64_t at) { told[0] = at; });
  kernels::mark_time(*stream, ns);
  kernels::pause_since(*stream, {ns, 1}, 250'000);
  stream->tell_time([&](int64_t at) { told[1] = at; });
  stream->synchronize();
  CHECK(told[1] - told[0] == 250'000);
}
