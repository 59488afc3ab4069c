#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/element/block_index.h"
#include "kernels/element/count_steps.h"

namespace fsdp::kernels::cuda {
namespace {

// The pointers need 32,000 bytes, which is within CUDA's limit for kernel parameters
// (segment_table.h).
constexpr int kMostCounters = 4000;

// A table of counters, passed by value. A SegmentTable would start a thread block for each counter,
// but a counter needs only one thread.
struct Counters {
  int32_t count = 0;
  StepCount* each[kMostCounters];
};

__global__ void __launch_bounds__(kBlockThreads)
    count_kernel(const __grid_constant__ Counters counters, const StepBetas betas,
                 const float* found_inf) {
  const int i = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (i >= counters.count) return;
  if (found_inf != nullptr && *found_inf != 0.0F) return;
  StepCount* counter = counters.each[i];
  *counter = count_at(counter->step + 1, betas);
}

}  // namespace

void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf) {
  Counters table;  // `each` stays uninitialised beyond `count`
  for (size_t i = 0; i < counters.size(); ++i) {
    table.each[table.count++] = counters[i];
    if (table.count < kMostCounters && i + 1 < counters.size()) continue;
    launch(stream, "count_steps", count_kernel, (table.count + kBlockThreads - 1) / kBlockThreads,
           kBlockThreads, table, betas, found_inf);
    table.count = 0;
  }
}

void load_count_steps() { load("count_steps", count_kernel); }

}  // namespace fsdp::kernels::cuda
