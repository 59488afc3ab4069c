// Tests the simulated CUDA runtime: work that a host library does in place of a device.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "simulator/cuda/host_work.h"
#include "simulator/tests/gpu_arrays.h"
#include "simulator/tests/in_child.h"
#include "simulator/tests/kernels/sim_kernels.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

constexpr int64_t kWorkNumel = 64, kWorkBytes = kWorkNumel * 4;

// Computes to[i] = from[i] * 2 as an operator of LibTorch does.
void twice(cudaStream_t stream, float* to, const float* from) {
  const std::array<TouchedBytes, 1> read{TouchedBytes{from, kWorkBytes, false}};
  const std::array<TouchedBytes, 1> written{TouchedBytes{to, kWorkBytes, true}};
  HostWork work(stream, "twice", read);
  for (int64_t i = 0; i < kWorkNumel; ++i) to[i] = from[i] * 2;
  work.touched(written);
}

}  // namespace

TEST_CASE("work of the host runs behind what its stream waits for, and is in order with it") {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    for (const Schedule schedule : {Schedule::kRandom, Schedule::kLate}) {
      SimulatedGpu gpu({.seed = seed, .schedule = schedule});
      cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
      float* const slot = make_floats(kWorkNumel);
      float* const out = make_floats(kWorkNumel);
      samples::launch_fill(slot, 3, kWorkNumel, gather);
      order(gather, compute);
      twice(compute, out, slot);
      samples::launch_add(out, out, 1, kWorkNumel, compute);
      CHECK(download(out, kWorkNumel, compute) == std::vector<float>(kWorkNumel, 7));
      CHECK(gpu.happens_before("fill<float> #1 on gather", "twice #1 on compute"));
      CHECK(gpu.take_reports().empty());
    }
  }
}

TEST_CASE("a wait that is missing before or behind work of the host is found") {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    for (const bool before : {false, true}) {
      SimulatedGpu gpu({.seed = seed});
      cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
      float* const slot = make_floats(kWorkNumel);
      float* const out = make_floats(kWorkNumel);
      gpu.name_memory(slot, "slot");
      samples::launch_fill(slot, 3, kWorkNumel, gather);
      if (!before) order(gather, compute);
      twice(compute, out, slot);
      if (before) order(compute, gather);
      samples::launch_fill(slot, 4, kWorkNumel, gather);
      check_one_report(gpu, {"fill<float> #", "twice #1 on compute", "byte 0 of slot"});
    }
  }
}

// If the host counted as having waited, this wait would hide a wait that the engine lacks.
TEST_CASE("the host has not waited for the work that it does itself") {
  SimulatedGpu gpu;
  cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const slot = make_floats(kWorkNumel);
  float* const out = make_floats(kWorkNumel);
  samples::launch_fill(slot, 3, kWorkNumel, gather);
  order(gather, compute);
  twice(compute, out, slot);
  samples::launch_add(slot, out, 1, kWorkNumel, gather);
  CHECK(gpu.take_reports().size() == 2);  // the launch reads `out` and writes `slot`
  cudaStream_t reduce = make_stream(gpu, "reduce");
  samples::launch_add(slot, slot, 1, kWorkNumel, reduce);
  CHECK_FALSE(gpu.is_ordered("fill<float> #1 on gather", "add #1 on reduce"));
  CHECK_FALSE(gpu.take_reports().empty());
  CHECK(gpu.host_waits().empty());
}

TEST_CASE("memory that the host's work frees under another stream is found") {
  SimulatedGpu gpu;
  cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const slot = make_floats(kWorkNumel);
  samples::launch_fill(slot, 3, kWorkNumel, compute);
  order(compute, gather);
  samples::launch_add(slot, slot, 1, kWorkNumel, gather);
  SUBCASE("in order") {
    order(gather, compute);
    note_freed(compute, slot, kWorkBytes);
    CHECK(gpu.take_reports().empty());
  }
  SUBCASE("too early") {
    note_freed(compute, slot, kWorkBytes);
    check_one_report(gpu, {"add #1 on gather", "release #1 on compute"});
  }
}

TEST_CASE("parts that an allocator carves are memory while they are held, in stream order") {
  // A use of y, which occupies the memory that x had, and the expected report (empty: none).
  struct Use {
    std::function<void(cudaStream_t compute, cudaStream_t gather, float* y)> act;
    std::vector<std::string> report;
  };
  const std::vector<Use> uses{
      {[](cudaStream_t compute, cudaStream_t gather, float* y) {
         order(compute, gather);
         samples::launch_fill(y, 1, 2 * kWorkNumel, gather);
       },
       {}},
      {[](cudaStream_t, cudaStream_t gather, float* y) {
         require(cudaMemsetAsync(y, 0, kWorkBytes, gather));
       },
       {"allocation #2 on compute", "set #1 on gather", "nothing orders them"}},
      {[](cudaStream_t compute, cudaStream_t, float* y) {
         samples::launch_fill(y, 1, 2 * kWorkNumel + 1, compute);
       },
       {"outside of device memory, 0 bytes behind y"}},
      {[](cudaStream_t compute, cudaStream_t, float* y) {
         samples::launch_add(y, y, 1, kWorkNumel, compute);
       },
       {"of y, which nobody has written"}},
      {[](cudaStream_t compute, cudaStream_t, float* y) {
         forget_memory(compute, 0, y, 2 * kWorkBytes);
         const std::array<TouchedBytes, 1> read{TouchedBytes{y, kWorkBytes, false}};
         const HostWork work(compute, "late", read);
       },
       {"256 bytes in y, which was given back"}},
      {[](cudaStream_t compute, cudaStream_t, float* y) {
         adopt_memory(compute, y + kWorkNumel, kWorkBytes, "z");
       },
       {"z of 256 bytes is carved out of", "where there is no room"}},
  };
  for (const Schedule schedule : kAllSchedules) {
    for (const Use& use : uses) {
      SimulatedGpu gpu({.schedule = schedule});
      cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
      float* const pool = make_floats(4 * kWorkNumel);
      adopt_memory(compute, pool, kWorkBytes, "x");
      samples::launch_fill(pool, 1, kWorkNumel, compute);
      forget_memory(compute, 0, pool, kWorkBytes);  // the fill may not have run yet
      adopt_memory(compute, pool, 2 * kWorkBytes, "y");
      CHECK(gpu.take_reports().empty());
      use.act(compute, gather, pool);
      if (use.report.empty()) {
        CHECK(gpu.take_reports().empty());
      } else {
        check_one_report(gpu, use.report);
      }
    }
  }
}

TEST_CASE("device memory is open to the host's work alone") {
  SimulatedGpu gpu;
  cudaStream_t compute = make_stream(gpu, "compute");
  float* const x = make_floats(1);
  CHECK(in_child([&] {
          {
            const HostWork work(compute, "write", {});
            *x = 1;
          }
          static_cast<void>(*static_cast<volatile float*>(x));
        }).signal == SIGSEGV);
  CHECK(in_child([&] {
          const HostWork work(compute, "write", {});
          *x = 1;
        }).signal == 0);
}
