#include "comm/reduce/reduce_cpu.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "comm/reduce/narrow_float.h"
#include "comm/reduce/streaming_copy.h"

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
constexpr int64_t kStreamedBlockBytes = 8192;

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

template <ReduceOp kOp, class Accumulator>
__attribute__((always_inline)) inline Accumulator combine(Accumulator a, Accumulator b) {
  if constexpr (kOp == ReduceOp::kMax) {
    // A comparison with NaN is false, so that b != b has to ask for it; a NaN in a stays.
    return (b > a) | (b != b) ? b : a;
  } else {
    return a + b;
  }
}

template <ReduceOp kOp, class Accumulator>
__attribute__((always_inline)) inline Accumulator finish(Accumulator sum, size_t count) {
  if constexpr (kOp == ReduceOp::kAvg) {
    return sum / static_cast<Accumulator>(count);
  } else {
    return sum;
  }
}

// All sources at once, with the sum in a register.
template <class Element, ReduceOp kOp, size_t kSources>
__attribute__((always_inline)) inline void reduce_few(std::span<const void* const> sources,
                                                      void* out, int64_t numel) {
  using Accumulator = typename AccumulatorOf<Element>::type;
  std::array<const Element*, kSources> from;
  for (size_t s = 0; s < kSources; ++s) from[s] = static_cast<const Element*>(sources[s]);
  auto* const result = static_cast<Element*>(out);
#pragma GCC ivdep  // `out` overlaps a source only where the two are the same
  for (int64_t i = 0; i < numel; ++i) {
    Accumulator sum = load(from[0][i]);
    for (size_t s = 1; s < kSources; ++s) sum = combine<kOp, Accumulator>(sum, load(from[s][i]));
    store(finish<kOp>(sum, kSources), result[i]);
  }
}

template <class Element, ReduceOp kOp>
__attribute__((always_inline)) inline void reduce_blocks(std::span<const void* const> sources,
                                                         void* out, int64_t numel) {
  using Accumulator = typename AccumulatorOf<Element>::type;
  std::array<Accumulator, kBlock> sum;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    const auto* first = static_cast<const Element*>(sources[0]) + begin;
    for (int64_t i = 0; i < length; ++i) sum[i] = load(first[i]);
    for (const void* const source : sources.subspan(1)) {
      const auto* next = static_cast<const Element*>(source) + begin;
      for (int64_t i = 0; i < length; ++i) {
        sum[i] = combine<kOp, Accumulator>(sum[i], load(next[i]));
      }
    }
    auto* result = static_cast<Element*>(out) + begin;
    for (int64_t i = 0; i < length; ++i) store(finish<kOp>(sum[i], sources.size()), result[i]);
  }
}

template <class Element, ReduceOp kOp>
__attribute__((always_inline)) inline void reduce_with(std::span<const void* const> sources,
                                                       void* out, int64_t numel) {
  switch (sources.size()) {
    case 2:
      return reduce_few<Element, kOp, 2>(sources, out, numel);
    case 4:
      return reduce_few<Element, kOp, 4>(sources, out, numel);
    default:
      return reduce_blocks<Element, kOp>(sources, out, numel);
  }
}

template <class Element>
__attribute__((always_inline)) inline void reduce(std::span<const void* const> sources, void* out,
                                                  int64_t numel, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_with<Element, ReduceOp::kSum>(sources, out, numel);
    case ReduceOp::kAvg:
      return reduce_with<Element, ReduceOp::kAvg>(sources, out, numel);
    case ReduceOp::kMax:
      return reduce_with<Element, ReduceOp::kMax>(sources, out, numel);
  }
}

FSDP_REDUCE_CLONES void reduce_float32(std::span<const void* const> sources, void* out,
                                       int64_t numel, ReduceOp op) {
  reduce<float>(sources, out, numel, op);
}
FSDP_REDUCE_CLONES void reduce_bfloat16(std::span<const void* const> sources, void* out,
                                        int64_t numel, ReduceOp op) {
  reduce<BFloat16Bits>(sources, out, numel, op);
}
FSDP_REDUCE_CLONES void reduce_float16(std::span<const void* const> sources, void* out,
                                       int64_t numel, ReduceOp op) {
  reduce<Float16Bits>(sources, out, numel, op);
}
FSDP_REDUCE_CLONES void reduce_float64(std::span<const void* const> sources, void* out,
                                       int64_t numel, ReduceOp op) {
  reduce<double>(sources, out, numel, op);
}

void reduce_through_caches(std::span<const void* const> sources, void* out, int64_t numel,
                           DType dtype, ReduceOp op) {
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
      if (op == ReduceOp::kMax) return reduce<int64_t>(sources, out, numel, op);
      return reduce<uint64_t>(sources, out, numel, op);
    case DType::kInt32:
      if (op == ReduceOp::kMax) return reduce<int32_t>(sources, out, numel, op);
      return reduce<uint32_t>(sources, out, numel, op);
    case DType::kUInt8:
      return reduce<uint8_t>(sources, out, numel, op);
  }
}

// Blocks are reduced in the first-level cache and written past the others.
void reduce_streaming(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                      ReduceOp op) {
  alignas(64) std::array<std::byte, kStreamedBlockBytes> block;
  std::vector<const void*> from(sources.begin(), sources.end());
  auto* to = static_cast<std::byte*>(out);
  const int64_t block_numel = kStreamedBlockBytes / size_of(dtype);
  for (int64_t begin = 0; begin < numel; begin += block_numel) {
    const int64_t length = std::min(block_numel, numel - begin);
    const int64_t bytes = length * size_of(dtype);
    reduce_through_caches(from, block.data(), length, dtype, op);
    copy_streaming(to, block.data(), bytes);
    to += bytes;
    for (const void*& source : from) source = static_cast<const std::byte*>(source) + bytes;
  }
  finish_streaming();
}

}  // namespace

void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op) {
  // As a rule a source is one rank's, and each rank reduces as much of all of them.
  const auto ranks = static_cast<int64_t>(sources.size());
  const bool streams = ranks * ranks * numel * size_of(dtype) >= kStreamFromBytes;
  (streams ? reduce_streaming : reduce_through_caches)(sources, out, numel, dtype, op);
}

}  // namespace fsdp
