#include <cmath>
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

// What a segment's loop needs, rounded once from double.
struct Scalars {
  float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float root_correction2, eps, negative_step_size;
};

Scalars scalars_of(const AdamWSegment& segment, const AdamWOptions& options) {
  double correction1 = 1.0;
  double correction2 = 1.0;
  if (segment.step != nullptr) {
    const auto step = static_cast<double>(*segment.step);
    correction1 = 1.0 - std::pow(options.beta1, step);
    correction2 = 1.0 - std::pow(options.beta2, step);
  }
  return {.grad_scale = options.grad_scale == nullptr ? 1.0F : *options.grad_scale,
          .decay = static_cast<float>(1.0 - segment.lr * segment.weight_decay),
          .beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .root_correction2 = static_cast<float>(std::sqrt(correction2)),
          .eps = static_cast<float>(options.eps),
          .negative_step_size = static_cast<float>(-(segment.lr / correction1))};
}

// Multiplying by a decay or scale of exactly 1 and dividing by a correction of 1 change no bit, so
// one loop serves with and without them. Copy is void for no lower-precision copy. The scalars come
// by value and ivdep says what restrict no longer does after inlining: without them the compiler
// gives up on proving seven streams apart.
template <class Copy>
FSDP_INLINE void update(const AdamWSegment& segment, const Scalars s) {
  float* __restrict param = segment.param;
  const float* __restrict grad = segment.grad;
  float* __restrict exp_avg = segment.exp_avg;
  float* __restrict exp_avg_sq = segment.exp_avg_sq;
  auto* __restrict copy = static_cast<uint16_t*>(segment.low_precision_copy);
  const int64_t numel = segment.numel;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    const float g = grad[i] * s.grad_scale;
    const float m = __builtin_fmaf(g, s.one_minus_beta1, exp_avg[i] * s.beta1);
    const float v = __builtin_fmaf(s.one_minus_beta2 * g, g, exp_avg_sq[i] * s.beta2);
    const float denominator = __builtin_sqrtf(v) / s.root_correction2 + s.eps;
    const float p = param[i] * s.decay + (s.negative_step_size * m) / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
  }
}

FSDP_TARGET_CLONES
void update_segment(const AdamWSegment& segment, const Scalars& scalars) {
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
      update_segment(segment, scalars_of(segment, options));
    }
  });
}

void count_steps(Stream& stream, std::span<int64_t* const> counters, const float* found_inf) {
  run_over_table(stream, counters, [found_inf](std::span<int64_t* const> table) {
    if (found_inf != nullptr && *found_inf != 0.0F) return;
    for (int64_t* counter : table) ++*counter;
  });
}

}  // namespace fsdp::kernels::cpu
