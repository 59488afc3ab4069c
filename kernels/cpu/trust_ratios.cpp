#include "kernels/element/trust_ratios.h"

#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"

namespace fsdp::kernels::cpu {
namespace {

// A tree is built in registers, kLeaf elements at a time, so that loads and arithmetic overlap.
constexpr int64_t kLeaf = 16;
constexpr int64_t kChunk = 256;
constexpr int64_t kPrefetch = 1024;  // elements ahead, chosen by measurement

// Eight neighbouring nodes of a tree.
using Nodes = double __attribute__((vector_size(64)));

// Joins sixteen neighbouring nodes in pairs.
FSDP_INLINE void join_nodes(const Nodes& left, const Nodes& right, Nodes& joined) {
  joined = __builtin_shufflevector(left, right, 0, 2, 4, 6, 8, 10, 12, 14) +
           __builtin_shufflevector(left, right, 1, 3, 5, 7, 9, 11, 13, 15);
}

// Writes eight neighbouring nodes over the squares of `kNumel` values.
template <int64_t kNumel>
FSDP_INLINE void join_squares(const float* values, Nodes& nodes) {
  if constexpr (kNumel == 8) {
    for (int i = 0; i < 8; ++i) nodes[i] = values[i];
    nodes *= nodes;
  } else {
    Nodes left, right;
    join_squares<kNumel / 2>(values, left);
    join_squares<kNumel / 2>(values + kNumel / 2, right);
    join_nodes(left, right, nodes);
  }
}

FSDP_INLINE double root_of(const Nodes& n) {
  return ((n[0] + n[1]) + (n[2] + n[3])) + ((n[4] + n[5]) + (n[6] + n[7]));
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

// Writes the terms of `numel` elements.
template <class Terms, class Scalars>
FSDP_INLINE void write_terms(const UpdateSegment& elements, int64_t begin, int64_t numel,
                             const Scalars s, float* __restrict updates) {
  constexpr bool kReads = Terms::Update::kMoments > 0;
  const float* __restrict param = elements.param + begin;
  const float* __restrict grad = elements.grad + begin;
  const float* __restrict first = kReads ? elements.moments[0] + begin : nullptr;
  const float* __restrict second = kReads ? elements.moments[1] + begin : nullptr;
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    updates[i] =
        Terms::of_update(param[i], grad[i], kReads ? first[i] : 0, kReads ? second[i] : 0, s);
  }
}

FSDP_INLINE void prefetch(const float* array, int64_t begin) {
  __builtin_prefetch(array + begin + kPrefetch);
}

// Writes eight neighbouring nodes over the squares of `kNumel` parameters, and over those of their
// terms.
template <class Terms, int64_t kNumel, class Scalars>
FSDP_INLINE void join_terms(const UpdateSegment& elements, int64_t begin, const Scalars& s,
                            Nodes& params, Nodes& updates) {
  if constexpr (kNumel == kLeaf) {
    prefetch(elements.param, begin);
    prefetch(elements.grad, begin);
    for (int i = 0; i < Terms::Update::kMoments; ++i) prefetch(elements.moments[i], begin);
    float terms[kLeaf];
    write_terms<Terms>(elements, begin, kLeaf, s, terms);
    join_squares<kLeaf>(elements.param + begin, params);
    join_squares<kLeaf>(terms, updates);
  } else {
    Nodes left[2], right[2];
    join_terms<Terms, kNumel / 2>(elements, begin, s, left[0], left[1]);
    join_terms<Terms, kNumel / 2>(elements, begin + kNumel / 2, s, right[0], right[1]);
    join_nodes(left[0], right[0], params);
    join_nodes(left[1], right[1], updates);
  }
}

// join_terms for the end of a segment: missing elements count as zeros.
template <class Terms, class Scalars>
FSDP_INLINE void join_last_terms(const UpdateSegment& elements, int64_t begin, const Scalars& s,
                                 Nodes& params, Nodes& updates) {
  float values[kChunk] = {}, terms[kChunk] = {};
  const int64_t numel = elements.numel - begin;
  std::copy_n(elements.param + begin, numel, values);
  write_terms<Terms>(elements, begin, numel, s, terms);
  join_squares<kChunk>(values, params);
  join_squares<kChunk>(terms, updates);
}

template <class Terms>
FSDP_TARGET_CLONES SquareSums sum_block(const UpdateSegment& elements, int64_t begin,
                                        const typename Terms::Update::Scalars& scalars) {
  SquareSums chunks[kBlockNumel / kChunk];
  int64_t count = 0;
  const int64_t end = std::min(elements.numel, begin + kBlockNumel);
  for (; begin < end; begin += kChunk) {
    Nodes params, updates;
    if (end - begin >= kChunk) {
      join_terms<Terms, kChunk>(elements, begin, scalars, params, updates);
    } else {
      join_last_terms<Terms>(elements, begin, scalars, params, updates);
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
