#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/sgd.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kWidth = kVectorBytes / sizeof(float);

struct Segment {
  float* param;
  const float* grad;
  float* buffer;
  void* copy;
  const StepCount* step;
  Stretch stretch;
  float negative_lr, weight_decay;  // of host_scalars
  DType copy_dtype;
};

// `Copy` is void for none.
template <class Copy, bool kDecay, Momentum kMomentum>
__device__ __forceinline__ void update(const Segment& segment, int64_t block, const SgdScalars& s) {
  float* __restrict__ param = segment.param;
  const float* __restrict__ grad = segment.grad;
  float* __restrict__ buffer = segment.buffer;
  auto* __restrict__ copy = static_cast<uint16_t*>(segment.copy);
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        float p[kWidth], g[kWidth], b[kWidth] = {};
        load_vector(param + i, p);
        load_vector(grad + i, g);
        if constexpr (kMomentum != Momentum::kNone) {
          if (!s.first) load_vector(buffer + i, b);
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sgd_element<kDecay, kMomentum>(p[j], g[j], b[j], s);
        store_vector(p, param + i);
        if constexpr (kMomentum != Momentum::kNone) store_vector(b, buffer + i);
        if constexpr (!std::is_void_v<Copy>) {
          uint16_t narrow[kWidth];
#pragma unroll
          for (int j = 0; j < kWidth; ++j) narrow[j] = from_float<Copy>(p[j]).bits;
          store_vector(narrow, copy + i);
        }
      },
      [=](int64_t i) {
        float p = param[i], b = 0;
        if constexpr (kMomentum != Momentum::kNone) {
          if (!s.first) b = buffer[i];
        }
        sgd_element<kDecay, kMomentum>(p, grad[i], b, s);
        param[i] = p;
        if constexpr (kMomentum != Momentum::kNone) buffer[i] = b;
        if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
      });
}

template <bool kDecay, Momentum kMomentum>
__device__ __forceinline__ void update_copy(const Segment& segment, int64_t block,
                                            const SgdScalars& s) {
  if (segment.copy == nullptr) {
    update<void, kDecay, kMomentum>(segment, block, s);
  } else if (segment.copy_dtype == DType::kBFloat16) {
    update<BFloat16, kDecay, kMomentum>(segment, block, s);
  } else {
    update<Float16, kDecay, kMomentum>(segment, block, s);
  }
}

template <Momentum kMomentum>
__global__ void __launch_bounds__(kBlockThreads)
    sgd_kernel(const __grid_constant__ ManySegments<Segment> table, const SgdScalars common,
               const float* grad_scale, const float* found_inf) {
  if (found_inf != nullptr && *found_inf != 0.0F) return;
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  SgdScalars scalars = common;
  scalars.negative_lr = segment.negative_lr;
  scalars.weight_decay = segment.weight_decay;
  read_scalars(scalars, segment.step, grad_scale);
  if (scalars.weight_decay != 0.0F) {
    update_copy<true, kMomentum>(segment, place.block, scalars);
  } else {
    update_copy<false, kMomentum>(segment, place.block, scalars);
  }
}

auto kernel_for(Momentum momentum) {
  switch (momentum) {
    case Momentum::kPlain:
      return sgd_kernel<Momentum::kPlain>;
    case Momentum::kNesterov:
      return sgd_kernel<Momentum::kNesterov>;
    default:
      return sgd_kernel<Momentum::kNone>;
  }
}

}  // namespace

void sgd(Stream& stream, std::span<const SgdSegment> segments, const SgdOptions& options) {
  TableLaunch<Segment, SgdScalars, const float*, const float*> launches(
      stream, "sgd", {kernel_for(momentum_of(options))}, host_scalars(0, 0, options),
      options.grad_scale, options.found_inf);
  const bool has_momentum = momentum_of(options) != Momentum::kNone;
  for (const SgdSegment& each : segments) {
    float* const buffer = has_momentum ? each.momentum_buffer : nullptr;
    const Stretch stretch =
        stretch_of(each.numel, kWidth,
                   {{each.param, 4}, {each.grad, 4}, {buffer, 4}, {each.low_precision_copy, 2}});
    const SgdScalars scalars = host_scalars(each.lr, each.weight_decay, options);
    launches.add({.param = each.param,
                  .grad = each.grad,
                  .buffer = buffer,
                  .copy = each.low_precision_copy,
                  .step = each.step,
                  .stretch = stretch,
                  .negative_lr = scalars.negative_lr,
                  .weight_decay = scalars.weight_decay,
                  .copy_dtype = each.low_precision_dtype},
                 stretch.blocks());
  }
  launches.issue();
}

void load_sgd() {
  for (const Momentum each : {Momentum::kNone, Momentum::kPlain, Momentum::kNesterov}) {
    load("sgd", kernel_for(each));
  }
}

}  // namespace fsdp::kernels::cuda
