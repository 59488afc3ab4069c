#include <type_traits>
#include <utility>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/segment_table.h"
#include "kernels/cuda/stretch.h"
#include "kernels/element/updates.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kWidth = kVectorBytes / sizeof(float);

// A segment in the form that the kernel reads. `moments` has at least one element, because C++ has
// no empty arrays.
template <class Update>
struct Segment {
  float* param;
  const float* grad;
  float* moments[Update::kMoments == 0 ? 1 : Update::kMoments];
  void* copy;
  const StepCount* step;
  const float* trust_ratio;
  double lr;
  Stretch stretch;
  float decay;
  DType copy_dtype;
};

// Updates the elements of one block of a segment. `Copy` is void if there is no lower-precision
// copy. The arrays are restrict, because kernels/update.h forbids overlaps.
template <class Update, class Element, class Copy>
__device__ __forceinline__ void update_elements(const Segment<Update>& segment, int64_t block,
                                                const typename Update::Scalars& s) {
  constexpr int kMoments = Update::kMoments;
  float* __restrict__ param = segment.param;
  const float* __restrict__ grad = segment.grad;
  float* __restrict__ first = segment.moments[0];
  float* __restrict__ second = kMoments > 1 ? segment.moments[kMoments - 1] : nullptr;
  auto* __restrict__ copy = static_cast<uint16_t*>(segment.copy);
  for_each_element<kWidth>(
      segment.stretch, block,
      [=](int64_t i) {
        float p[kWidth], g[kWidth], a[kWidth] = {}, b[kWidth] = {};
        load_vector(param + i, p);
        load_vector(grad + i, g);
        if constexpr (kMoments > 0) {
          if (Update::reads_moments(s)) load_vector(first + i, a);
        }
        if constexpr (kMoments > 1) {
          if (Update::reads_moments(s)) load_vector(second + i, b);
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) Element::update(p[j], g[j], a[j], b[j], s);
        store_vector(p, param + i);
        if constexpr (kMoments > 0) store_vector(a, first + i);
        if constexpr (kMoments > 1) store_vector(b, second + i);
        if constexpr (!std::is_void_v<Copy>) {
          uint16_t narrow[kWidth];
#pragma unroll
          for (int j = 0; j < kWidth; ++j) narrow[j] = from_float<Copy>(p[j]).bits;
          store_vector(narrow, copy + i);
        }
      },
      [=](int64_t i) {
        float p = param[i], a = 0, b = 0;
        if constexpr (kMoments > 0) {
          if (Update::reads_moments(s)) a = first[i];
        }
        if constexpr (kMoments > 1) {
          if (Update::reads_moments(s)) b = second[i];
        }
        Element::update(p, grad[i], a, b, s);
        param[i] = p;
        if constexpr (kMoments > 0) first[i] = a;
        if constexpr (kMoments > 1) second[i] = b;
        if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
      });
}

template <class Update, class Element>
__device__ __forceinline__ void update_copy(const Segment<Update>& segment, int64_t block,
                                            const typename Update::Scalars& s) {
  if (segment.copy == nullptr) {
    update_elements<Update, Element, void>(segment, block, s);
  } else if (segment.copy_dtype == DType::kBFloat16) {
    update_elements<Update, Element, BFloat16>(segment, block, s);
  } else {
    update_elements<Update, Element, Float16>(segment, block, s);
  }
}

// Reads found_inf and the scale on the device, because the host runs ahead of the stream.
template <class Update>
__global__ void __launch_bounds__(kBlockThreads)
    update_kernel(const __grid_constant__ ManySegments<Segment<Update>> table,
                  const typename Update::Scalars common, const UpdateScalars given) {
  if (given.found_inf != nullptr && *given.found_inf != 0.0F) return;
  const BlockPlace place = place_of_block(table);
  const Segment<Update>& segment = table.segments[place.segment];
  typename Update::Scalars scalars = common;
  scalars.decay = segment.decay;
  if (given.grad_scale != nullptr) scalars.grad_scale = *given.grad_scale;
  Update::read_scalars(scalars, segment.lr, segment.step);
  if constexpr (requires { &Update::read_trust_ratio; }) {
    if (segment.trust_ratio != nullptr) {
      Update::read_trust_ratio(scalars, segment.lr, *segment.trust_ratio);
    }
  }
  using Decayed = typename Update::Decayed;
  using Undecayed = typename Update::Undecayed;
  if constexpr (std::is_same_v<Decayed, Undecayed>) {
    update_copy<Update, Decayed>(segment, place.block, scalars);
  } else if (scalars.decay != 0.0F) {
    update_copy<Update, Decayed>(segment, place.block, scalars);
  } else {
    update_copy<Update, Undecayed>(segment, place.block, scalars);
  }
}

// An optimizer step updates all parameters in few launches, so one table size is enough.
template <class Update>
TableKernel<Segment<Update>, typename Update::Scalars, UpdateScalars> kernel_of() {
  return {.many = &update_kernel<Update>};
}

template <class Update>
void issue(Stream& stream, std::span<const UpdateSegment> segments,
           const typename Update::Rule& rule, const UpdateScalars& given) {
  constexpr int kMoments = Update::kMoments;
  TableLaunch<Segment<Update>, typename Update::Scalars, UpdateScalars> launches(
      stream, Update::Rule::kName, kernel_of<Update>(), Update::host_scalars(rule), given);
  for (const UpdateSegment& each : segments) {
    float* const first = kMoments > 0 ? each.moments[0] : nullptr;
    float* const second = kMoments > 1 ? each.moments[1] : nullptr;
    const Stretch stretch = stretch_of(
        each.numel, kWidth,
        {{each.param, 4}, {each.grad, 4}, {first, 4}, {second, 4}, {each.low_precision_copy, 2}});
    Segment<Update> segment{.param = each.param,
                            .grad = each.grad,
                            .moments = {first},
                            .copy = each.low_precision_copy,
                            .step = each.step,
                            .trust_ratio = each.trust_ratio,
                            .lr = each.lr,
                            .stretch = stretch,
                            // The host computes the decay in float64, as torch does, and rounds it
                            // once.
                            .decay = Update::decay(each.lr, each.weight_decay),
                            .copy_dtype = each.low_precision_dtype};
    if constexpr (kMoments > 1) segment.moments[1] = second;
    launches.add(segment, stretch.blocks());
  }
  launches.issue();
}

// Loads the kernels of all updates of a rule. The variant that update_of returns lists the updates.
template <class... Updates>
void load_updates(const std::variant<Updates...>& /*of_rule*/) {
  (kernel_of<Updates>().load(Updates::Rule::kName), ...);
}

template <size_t... kRules>
void load_rules(std::index_sequence<kRules...> /*rules*/) {
  (load_updates(update_of(std::variant_alternative_t<kRules, UpdateRule>{})), ...);
}

}  // namespace

void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars) {
  std::visit(
      [&](const auto& of) {
        std::visit([&](auto update) { issue<decltype(update)>(stream, segments, of, scalars); },
                   update_of(of));
      },
      rule);
}

void load_update() { load_rules(std::make_index_sequence<std::variant_size_v<UpdateRule>>()); }

}  // namespace fsdp::kernels::cuda
