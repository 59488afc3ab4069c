#include "kernels/element/adamw.h"

#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

// Copy is void for no lower-precision copy. The scalars come by value and ivdep says what restrict
// no longer does after inlining: without them the compiler gives up on proving seven streams apart.
template <class Copy>
FSDP_INLINE void update(const AdamWSegment& segment, const AdamWScalars s) {
  float* __restrict param = segment.param;
  const float* __restrict grad = segment.grad;
  float* __restrict exp_avg = segment.exp_avg;
  float* __restrict exp_avg_sq = segment.exp_avg_sq;
  auto* __restrict copy = static_cast<uint16_t*>(segment.low_precision_copy);
  const int64_t numel = segment.numel;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    float p = param[i], m = exp_avg[i], v = exp_avg_sq[i];
    adamw_element(p, grad[i], m, v, s);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
  }
}

FSDP_TARGET_CLONES
void update_segment(const AdamWSegment& segment, const AdamWScalars& scalars) {
  if (segment.low_precision_copy == nullptr) {
    update<void>(segment, scalars);
  } else if (segment.low_precision_dtype == DType::kBFloat16) {
    update<BFloat16>(segment, scalars);
  } else {
    update<Float16>(segment, scalars);
  }
}

}  // namespace

void adamw(Stream& stream, std::span<const AdamWSegment> segments, const AdamWOptions& options) {
  run_over_table(stream, segments, [options](std::span<const AdamWSegment> table) {
    if (options.found_inf != nullptr && *options.found_inf != 0.0F) return;
    for (const AdamWSegment& segment : table) {
      AdamWScalars scalars = host_scalars(segment.lr, segment.weight_decay, options);
      read_scalars(scalars, segment.lr, segment.step, options.grad_scale);
      update_segment(segment, scalars);
    }
  });
}

}  // namespace fsdp::kernels::cpu
