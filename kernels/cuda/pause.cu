#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace fsdp::kernels::cuda {
namespace {

// The longest sleep to request from __nanosleep, in ns. __nanosleep sleeps up to twice the
// requested time, and at most a millisecond. So a request for half of the remaining time never
// sleeps too long.
constexpr int64_t kLongestSleep = 500'000;

// Returns the device's clock. `volatile` makes each call read the clock again.
__device__ int64_t clock_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void __launch_bounds__(1) mark_kernel(int64_t* ns) { *ns = clock_ns(); }

__global__ void __launch_bounds__(1)
    pause_kernel(const int64_t* marks, const int count, const int64_t ns) {
  int64_t latest = marks[0];
  for (int i = 1; i < count; ++i) latest = marks[i] > latest ? marks[i] : latest;
  for (int64_t left = latest + ns - clock_ns(); left > 0; left = latest + ns - clock_ns()) {
    const int64_t half = (left + 1) / 2;
    __nanosleep(static_cast<unsigned>(half < kLongestSleep ? half : kLongestSleep));
  }
}

}  // namespace

void mark_time(Stream& stream, int64_t* ns) { launch(stream, "mark_time", mark_kernel, 1, 1, ns); }

void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns) {
  launch(stream, "pause_since", pause_kernel, 1, 1, marks.data(), static_cast<int>(marks.size()),
         ns);
}

void load_pause() {
  load("mark_time", mark_kernel);
  load("pause_since", pause_kernel);
}

}  // namespace fsdp::kernels::cuda
