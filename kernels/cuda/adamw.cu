#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/adamw.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kWidth = kVectorBytes / sizeof(float);

struct Segment {
  float* param;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* copy;
  const StepCount* step;
  double lr;
  Stretch stretch;
  float decay;  // of host_scalars
  DType copy_dtype;
};

// `Copy` is void for none.
template <class Copy>
__device__ __forceinline__ void update(const Segment& segment, int64_t block,
                                       const AdamWScalars& s) {
  float* __restrict__ param = segment.param;
  const float* __restrict__ grad = segment.grad;
  float* __restrict__ exp_avg = segment.exp_avg;
  float* __restrict__ exp_avg_sq = segment.exp_avg_sq;
  auto* __restrict__ copy = static_cast<uint16_t*>(segment.copy);
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        float p[kWidth], g[kWidth], m[kWidth], v[kWidth];
        load_vector(param + i, p);
        load_vector(grad + i, g);
        load_vector(exp_avg + i, m);
        load_vector(exp_avg_sq + i, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) adamw_element(p[j], g[j], m[j], v[j], s);
        store_vector(p, param + i);
        store_vector(m, exp_avg + i);
        store_vector(v, exp_avg_sq + i);
        if constexpr (!std::is_void_v<Copy>) {
          uint16_t narrow[kWidth];
#pragma unroll
          for (int j = 0; j < kWidth; ++j) narrow[j] = from_float<Copy>(p[j]).bits;
          store_vector(narrow, copy + i);
        }
      },
      [=](int64_t i) {
        float p = param[i], m = exp_avg[i], v = exp_avg_sq[i];
        adamw_element(p, grad[i], m, v, s);
        param[i] = p;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
      });
}

__global__ void __launch_bounds__(kBlockThreads)
    adamw_kernel(const __grid_constant__ ManySegments<Segment> table, const AdamWScalars common,
                 const float* grad_scale, const float* found_inf) {
  if (found_inf != nullptr && *found_inf != 0.0F) return;
  const BlockPlace place = place_of_block(table);
  const Segment& segment = table.segments[place.segment];
  AdamWScalars scalars = common;
  scalars.decay = segment.decay;
  scalars.negative_step_size = static_cast<float>(-segment.lr);
  read_scalars(scalars, segment.lr, segment.step, grad_scale);
  if (segment.copy == nullptr) {
    update<void>(segment, place.block, scalars);
  } else if (segment.copy_dtype == DType::kBFloat16) {
    update<BFloat16>(segment, place.block, scalars);
  } else {
    update<Float16>(segment, place.block, scalars);
  }
}

}  // namespace

void adamw(Stream& stream, std::span<const AdamWSegment> segments, const AdamWOptions& options) {
  TableLaunch<Segment, AdamWScalars, const float*, const float*> launches(
      stream, "adamw", {adamw_kernel}, host_scalars(0, 0, options), options.grad_scale,
      options.found_inf);
  for (const AdamWSegment& each : segments) {
    const Stretch stretch = stretch_of(each.numel, kWidth,
                                       {{each.param, 4},
                                        {each.grad, 4},
                                        {each.exp_avg, 4},
                                        {each.exp_avg_sq, 4},
                                        {each.low_precision_copy, 2}});
    launches.add({.param = each.param,
                  .grad = each.grad,
                  .exp_avg = each.exp_avg,
                  .exp_avg_sq = each.exp_avg_sq,
                  .copy = each.low_precision_copy,
                  .step = each.step,
                  .lr = each.lr,
                  .stretch = stretch,
                  .decay = host_scalars(each.lr, each.weight_decay, options).decay,
                  .copy_dtype = each.low_precision_dtype},
                 stretch.blocks());
  }
  launches.issue();
}

void load_adamw() { load("adamw", adamw_kernel); }

}  // namespace fsdp::kernels::cuda
