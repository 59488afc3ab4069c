#include "kernels/update.h"

#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element/updates.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

// Updates the elements of a segment. Copy is void if there is no lower-precision copy. The compiler
// drops restrict when it inlines, so ivdep states again that the arrays do not overlap. The scalars
// are passed by value, so that the compiler need not assume that a store changes them.
template <class Element, int kMoments, class Copy, class Scalars>
FSDP_INLINE void update_elements(const UpdateSegment& segment, const Scalars s) {
  float* __restrict param = segment.param;
  const float* __restrict grad = segment.grad;
  float* __restrict first = segment.moments[0];
  float* __restrict second = segment.moments[1];
  auto* __restrict copy = static_cast<uint16_t*>(segment.low_precision_copy);
  const int64_t numel = segment.numel;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    float p = param[i], a = 0, b = 0;
    if constexpr (kMoments > 0) a = first[i];
    if constexpr (kMoments > 1) b = second[i];
    Element::update(p, grad[i], a, b, s);
    if constexpr (kMoments > 0) first[i] = a;
    if constexpr (kMoments > 1) second[i] = b;
    param[i] = p;
    if constexpr (!std::is_void_v<Copy>) copy[i] = from_float<Copy>(p).bits;
  }
}

// Calls Decayed if the segment's decay is not 0, otherwise Undecayed. Both names mean the same
// function in AdamW, which multiplies by a decay factor (kernels/element/updates.h).
template <class Update, class Copy>
FSDP_INLINE void update_copy(const UpdateSegment& segment,
                             const typename Update::Scalars& scalars) {
  constexpr int kMoments = Update::kMoments;
  if (std::is_same_v<typename Update::Decayed, typename Update::Undecayed> ||
      scalars.decay != 0.0F) {
    update_elements<typename Update::Decayed, kMoments, Copy>(segment, scalars);
  } else {
    update_elements<typename Update::Undecayed, kMoments, Copy>(segment, scalars);
  }
}

template <class Update>
FSDP_TARGET_CLONES void update_segment(const UpdateSegment& segment,
                                       const typename Update::Scalars& scalars) {
  if (segment.low_precision_copy == nullptr) {
    update_copy<Update, void>(segment, scalars);
  } else if (segment.low_precision_dtype == DType::kBFloat16) {
    update_copy<Update, BFloat16>(segment, scalars);
  } else {
    update_copy<Update, Float16>(segment, scalars);
  }
}

template <class Update>
void run(Stream& stream, std::span<const UpdateSegment> segments, const typename Update::Rule& rule,
         const UpdateScalars& given) {
  run_over_table(stream, segments, [rule, given](std::span<const UpdateSegment> table) {
    // The scalars are read in stream order, because earlier work of the stream writes them.
    if (given.found_inf != nullptr && *given.found_inf != 0.0F) return;
    typename Update::Scalars scalars = Update::host_scalars(rule);
    if (given.grad_scale != nullptr) scalars.grad_scale = *given.grad_scale;
    for (const UpdateSegment& segment : table) {
      if (segment.numel == 0) continue;  // its pointers may be null
      typename Update::Scalars own = scalars;
      own.decay = Update::decay(segment.lr, segment.weight_decay);
      Update::read_scalars(own, segment.lr, segment.step);
      if constexpr (requires { &Update::read_trust_ratio; }) {
        if (segment.trust_ratio != nullptr) {
          Update::read_trust_ratio(own, segment.lr, *segment.trust_ratio);
        }
      }
      update_segment<Update>(segment, own);
    }
  });
}

}  // namespace

// The outer visit chooses the rule. The inner visit chooses the update for the rule's options.
void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars) {
  std::visit(
      [&](const auto& of) {
        std::visit([&](auto update) { run<decltype(update)>(stream, segments, of, scalars); },
                   update_of(of));
      },
      rule);
}

}  // namespace fsdp::kernels::cpu
