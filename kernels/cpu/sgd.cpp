#include "kernels/element/sgd.h"

#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

template <class Copy, bool kDecay, Momentum kMomentum>
FSDP_INLINE void update(const SgdSegment& segment, const SgdScalars s) {
  float* __restrict param = segment.param;
  const float* __restrict grad = segment.grad;
  float* __restrict buffer = segment.momentum_buffer;
  auto* __restrict copy = static_cast<uint16_t*>(segment.low_precision_copy);
  const int64_t numel = segment.numel;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    float p = param[i], b = 0;
    if constexpr (kMomentum != Momentum::kNone) b = buffer[i];
    sgd_element<kDecay, kMomentum>(p, grad[i], b, s);
    if constexpr (kMomentum != Momentum::kNone) buffer[i] = b;
    param[i] = p;
    if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
  }
}

template <class Copy, bool kDecay>
FSDP_INLINE void update(const SgdSegment& segment, const SgdScalars& scalars, Momentum momentum) {
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
FSDP_INLINE void update(const SgdSegment& segment, const SgdScalars& scalars, Momentum momentum) {
  if (scalars.weight_decay != 0.0F) {
    update<Copy, true>(segment, scalars, momentum);
  } else {
    update<Copy, false>(segment, scalars, momentum);
  }
}

FSDP_TARGET_CLONES
void update_segment(const SgdSegment& segment, const SgdScalars& scalars, Momentum momentum) {
  if (segment.low_precision_copy == nullptr) {
    update<void>(segment, scalars, momentum);
  } else if (segment.low_precision_dtype == DType::kBFloat16) {
    update<BFloat16>(segment, scalars, momentum);
  } else {
    update<Float16>(segment, scalars, momentum);
  }
}

}  // namespace

void sgd(Stream& stream, std::span<const SgdSegment> segments, const SgdOptions& options) {
  const Momentum momentum = momentum_of(options);
  run_over_table(stream, segments, [options, momentum](std::span<const SgdSegment> table) {
    if (options.found_inf != nullptr && *options.found_inf != 0.0F) return;
    for (const SgdSegment& segment : table) {
      SgdScalars scalars = host_scalars(segment.lr, segment.weight_decay, options);
      read_scalars(scalars, segment.step, options.grad_scale);
      update_segment(segment, scalars, momentum);
    }
  });
}

}  // namespace fsdp::kernels::cpu
