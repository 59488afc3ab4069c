#include "kernels/element/trust_ratios.h"

#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"

namespace fsdp::kernels::cpu {
namespace {

// Elements are processed in chunks, whose squares fit into the first-level cache.
constexpr int64_t kChunk = 256;

// Returns the root of a tree. The levels are separate arrays, so that each level vectorises.
template <int64_t kCount>
FSDP_INLINE double root_of(const double (&values)[kCount]) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    double next[kCount / 2];
    for (int64_t i = 0; i < kCount / 2; ++i) next[i] = values[2 * i] + values[2 * i + 1];
    return root_of(next);
  }
}

// Returns the root of a tree whose size need not be a power of two. The last value of an odd level
// moves to the next level. This changes no bit, because the missing value would be a zero.
SquareSums join_all(SquareSums* values, int64_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (int64_t i = 0; i < count / 2; ++i) values[i] = joined(values[2 * i], values[2 * i + 1]);
    if (count % 2 != 0) values[count / 2] = values[count - 1];
  }
  return count == 0 ? SquareSums{} : values[0];
}

// Writes the squares of the terms of `numel` elements.
template <class Terms, class Scalars>
FSDP_INLINE void square_terms(const UpdateSegment& elements, int64_t begin, int64_t numel,
                              const Scalars s, double* __restrict params,
                              double* __restrict updates) {
  constexpr bool kReads = Terms::Update::kMoments > 0;
  const float* __restrict param = elements.param + begin;
  const float* __restrict grad = elements.grad + begin;
  const float* __restrict first = kReads ? elements.moments[0] + begin : nullptr;
  const float* __restrict second = kReads ? elements.moments[1] + begin : nullptr;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    const double p = param[i];
    const double u =
        Terms::of_update(param[i], grad[i], kReads ? first[i] : 0, kReads ? second[i] : 0, s);
    params[i] = p * p;
    updates[i] = u * u;
  }
}

template <class Terms>
FSDP_TARGET_CLONES SquareSums sum_block(const UpdateSegment& elements, int64_t begin,
                                        const typename Terms::Update::Scalars& scalars) {
  SquareSums chunks[kBlockNumel / kChunk];
  int64_t count = 0;
  const int64_t end = std::min(elements.numel, begin + kBlockNumel);
  for (; begin < end; begin += kChunk) {
    double params[kChunk], updates[kChunk];
    const int64_t numel = std::min(kChunk, end - begin);
    if (numel == kChunk) {
      square_terms<Terms>(elements, begin, kChunk, scalars, params, updates);
    } else {
      square_terms<Terms>(elements, begin, numel, scalars, params, updates);
      std::fill(params + numel, params + kChunk, 0.0);
      std::fill(updates + numel, updates + kChunk, 0.0);
    }
    chunks[count++] = {root_of(params), root_of(updates)};
  }
  return join_all(chunks, count);
}

template <class Terms>
void sum_nodes(std::span<const SumNode> nodes, const typename Terms::Update::Rule& rule,
               const float* grad_scale, SquareSums* blocks) {
  using Update = typename Terms::Update;
  for (const SumNode& node : nodes) {
    const UpdateSegment& elements = node.elements;
    if (elements.numel == 0) continue;
    typename Update::Scalars scalars = Update::host_scalars(rule);
    if (grad_scale != nullptr) scalars.grad_scale = *grad_scale;
    scalars.decay = Update::decay(elements.lr, elements.weight_decay);
    Update::read_scalars(scalars, elements.lr, elements.step);
    const int64_t count = blocks_for(elements.numel);
    for (int64_t i = 0; i < count; ++i) {
      blocks[i] = sum_block<Terms>(elements, i * kBlockNumel, scalars);
    }
    *node.sums = join_all(blocks, count);
  }
}

}  // namespace

void sum_squares(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
                 const float* grad_scale, void* scratch) {
  auto* blocks = static_cast<SquareSums*>(scratch);
  run_over_table(stream, nodes, [rule, grad_scale, blocks](std::span<const SumNode> table) {
    std::visit(
        [&](const auto& of) {
          if constexpr (kHasTerms<std::remove_cvref_t<decltype(of)>>) {
            sum_nodes<decltype(terms_of(of))>(table, of, grad_scale, blocks);
          }
        },
        rule);
  });
}

void trust_ratios(Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
                  const TrustFormula& formula) {
  run_over_table(stream, parameters, [sums, formula](std::span<const TrustParameter> table) {
    for (const TrustParameter& each : table) *each.ratio = trust_ratio_of(each, sums, formula);
  });
}

}  // namespace fsdp::kernels::cpu
