#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

enum class Momentum { kNone, kPlain, kNesterov };

struct Scalars {
  float grad_scale, weight_decay, momentum, one_minus_dampening, negative_lr;
  bool first;
};

Scalars scalars_of(const SgdSegment& segment, const SgdOptions& options) {
  return {.grad_scale = options.grad_scale == nullptr ? 1.0F : *options.grad_scale,
          .weight_decay = static_cast<float>(segment.weight_decay),
          .momentum = static_cast<float>(options.momentum),
          .one_minus_dampening = static_cast<float>(1.0 - options.dampening),
          .negative_lr = static_cast<float>(-segment.lr),
          .first = segment.step != nullptr && *segment.step == 1};
}

template <class Copy, bool kDecay, Momentum kMomentum>
FSDP_INLINE void update(const SgdSegment& segment, const Scalars s) {
  float* __restrict param = segment.param;
  const float* __restrict grad = segment.grad;
  float* __restrict buffer = segment.momentum_buffer;
  auto* __restrict copy = static_cast<uint16_t*>(segment.low_precision_copy);
  const int64_t numel = segment.numel;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    float d = grad[i] * s.grad_scale;
    // Not one loop with a decay of 0: 0 · inf is NaN.
    if constexpr (kDecay) d = __builtin_fmaf(param[i], s.weight_decay, d);
    if constexpr (kMomentum != Momentum::kNone) {
      const float moved = __builtin_fmaf(d, s.one_minus_dampening, buffer[i] * s.momentum);
      const float b = s.first ? d : moved;
      buffer[i] = b;
      d = kMomentum == Momentum::kNesterov ? __builtin_fmaf(b, s.momentum, d) : b;
    }
    const float p = __builtin_fmaf(d, s.negative_lr, param[i]);
    param[i] = p;
    if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
  }
}

template <class Copy, bool kDecay>
FSDP_INLINE void update(const SgdSegment& segment, const Scalars& scalars, Momentum momentum) {
  switch (momentum) {
    case Momentum::kNone:
      return update<Copy, kDecay, Momentum::kNone>(segment, scalars);
    case Momentum::kPlain:
      return update<Copy, kDecay, Momentum::kPlain>(segment, scalars);
    case Momentum::kNesterov:
      return update<Copy, kDecay, Momentum::kNesterov>(segment, scalars);
  }
}

template <class Copy>
FSDP_INLINE void update(const SgdSegment& segment, const Scalars& scalars, Momentum momentum) {
  if (scalars.weight_decay != 0.0F) {
    update<Copy, true>(segment, scalars, momentum);
  } else {
    update<Copy, false>(segment, scalars, momentum);
  }
}

FSDP_TARGET_CLONES
void update_segment(const SgdSegment& segment, const Scalars& scalars, Momentum momentum) {
  if (segment.low_precision_copy == nullptr) {
    update<void>(segment, scalars, momentum);
  } else if (segment.low_precision_dtype == DType::kBFloat16) {
    update<BFloat16>(segment, scalars, momentum);
  } else {
    update<Float16>(segment, scalars, momentum);
  }
}

Momentum momentum_of(const SgdOptions& options) {
  if (options.momentum == 0) return Momentum::kNone;
  return options.nesterov ? Momentum::kNesterov : Momentum::kPlain;
}

}  // namespace

void sgd(Stream& stream, std::span<const SgdSegment> segments, const SgdOptions& options) {
  const Momentum momentum = momentum_of(options);
  run_over_table(stream, segments, [options, momentum](std::span<const SgdSegment> table) {
    if (options.found_inf != nullptr && *options.found_inf != 0.0F) return;
    for (const SgdSegment& segment : table) {
      update_segment(segment, scalars_of(segment, options), momentum);
    }
  });
}

}  // namespace fsdp::kernels::cpu
