#include "comm/reduce_cpu.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "comm/narrow_float.h"

// The loops are compiled for several instruction sets and one version is chosen when the program
// starts. They give the same bits: each element is one chain of additions, nothing can be fused or
// reordered. Under the thread sanitizer the choice would run before its runtime is up and crash.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define FSDP_REDUCE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FSDP_REDUCE_CLONES
#endif

namespace fsdp {
namespace {

// Accumulators of one block stay in the first-level cache. A block is read from all sources before
// it is written, so that `out` may be one of them.
constexpr int64_t kBlock = 2048;

template <class Element>
struct AccumulatorOf {
  using type = Element;
};
template <>
struct AccumulatorOf<BFloat16Bits> {
  using type = float;
};
template <>
struct AccumulatorOf<Float16Bits> {
  using type = float;
};

template <class Element>
__attribute__((always_inline)) inline auto load(Element value) {
  if constexpr (std::is_arithmetic_v<Element>) {
    return value;
  } else {
    return widen(value);
  }
}

template <class Accumulator, class Element>
__attribute__((always_inline)) inline void store(Accumulator value, Element& out) {
  if constexpr (std::is_arithmetic_v<Element>) {
    out = value;
  } else {
    narrow(value, out);
  }
}

template <class Accumulator>
__attribute__((always_inline)) inline Accumulator larger(Accumulator a, Accumulator b) {
  // A comparison with NaN is false, so that b != b has to ask for it; a NaN in a stays.
  return (b > a) | (b != b) ? b : a;
}

template <class Element>
__attribute__((always_inline)) inline void reduce_blocks(std::span<const void* const> sources,
                                                         void* out, int64_t numel, ReduceOp op) {
  using Accumulator = typename AccumulatorOf<Element>::type;
  std::array<Accumulator, kBlock> sum;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    const auto* first = static_cast<const Element*>(sources[0]) + begin;
    for (int64_t i = 0; i < length; ++i) sum[i] = load(first[i]);
    for (const void* const source : sources.subspan(1)) {
      const auto* next = static_cast<const Element*>(source) + begin;
      if (op == ReduceOp::kMax) {
        for (int64_t i = 0; i < length; ++i) sum[i] = larger<Accumulator>(sum[i], load(next[i]));
      } else {
        for (int64_t i = 0; i < length; ++i) sum[i] = sum[i] + load(next[i]);
      }
    }
    if (op == ReduceOp::kAvg) {
      const auto count = static_cast<Accumulator>(sources.size());
      for (int64_t i = 0; i < length; ++i) sum[i] = sum[i] / count;
    }
    auto* result = static_cast<Element*>(out) + begin;
    for (int64_t i = 0; i < length; ++i) store(sum[i], result[i]);
  }
}

FSDP_REDUCE_CLONES void reduce_float32(std::span<const void* const> sources, void* out,
                                       int64_t numel, ReduceOp op) {
  reduce_blocks<float>(sources, out, numel, op);
}
FSDP_REDUCE_CLONES void reduce_bfloat16(std::span<const void* const> sources, void* out,
                                        int64_t numel, ReduceOp op) {
  reduce_blocks<BFloat16Bits>(sources, out, numel, op);
}
FSDP_REDUCE_CLONES void reduce_float16(std::span<const void* const> sources, void* out,
                                       int64_t numel, ReduceOp op) {
  reduce_blocks<Float16Bits>(sources, out, numel, op);
}
FSDP_REDUCE_CLONES void reduce_float64(std::span<const void* const> sources, void* out,
                                       int64_t numel, ReduceOp op) {
  reduce_blocks<double>(sources, out, numel, op);
}

}  // namespace

void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_float32(sources, out, numel, op);
    case DType::kBFloat16:
      return reduce_bfloat16(sources, out, numel, op);
    case DType::kFloat16:
      return reduce_float16(sources, out, numel, op);
    case DType::kFloat64:
      return reduce_float64(sources, out, numel, op);
    // Unsigned, so that an overflow wraps and is not undefined; the bits of a sum are the same.
    case DType::kInt64:
      if (op == ReduceOp::kMax) return reduce_blocks<int64_t>(sources, out, numel, op);
      return reduce_blocks<uint64_t>(sources, out, numel, op);
    case DType::kInt32:
      if (op == ReduceOp::kMax) return reduce_blocks<int32_t>(sources, out, numel, op);
      return reduce_blocks<uint32_t>(sources, out, numel, op);
    case DType::kUInt8:
      return reduce_blocks<uint8_t>(sources, out, numel, op);
  }
}

}  // namespace fsdp
