#include "kernels/cpu/reduce.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element/reduce.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp::kernels::cpu {
namespace {

// The number of elements in a block. The accumulators of so many elements fit into the first-level
// cache. A block is read from all sources before it is written, so `out` may be one of the sources.
constexpr int64_t kBlock = 2048;

// Reduces a number of sources that is known at compile time. One loop reads all sources and keeps
// the sum in a register. The order of the additions is the same as in reduce_blocks.
template <class Element, ReduceOp kOp, size_t kSources>
FSDP_INLINE void reduce_few(std::span<const void* const> sources, void* out, int64_t numel) {
  using Accumulator = AccumulatorOf<Element>;
  std::array<const Element*, kSources> from;
  for (size_t s = 0; s < kSources; ++s) from[s] = static_cast<const Element*>(sources[s]);
  auto* const result = static_cast<Element*>(out);
#pragma GCC ivdep  // if `out` overlaps a source, the two are the same memory
  for (int64_t i = 0; i < numel; ++i) {
    Accumulator sum = loaded(from[0][i]);
    for (size_t s = 1; s < kSources; ++s) sum = combined<kOp, Accumulator>(sum, loaded(from[s][i]));
    result[i] = stored<Element>(finished<kOp>(sum, kSources));
  }
}

// Reduces any number of sources, block by block. Each source in turn is added to all
// accumulators of a block, so each loop reads only two arrays and vectorises.
template <class Element, ReduceOp kOp>
FSDP_INLINE void reduce_blocks(std::span<const void* const> sources, void* out, int64_t numel,
                               size_t ranks) {
  using Accumulator = AccumulatorOf<Element>;
  std::array<Accumulator, kBlock> sum;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    const auto* first = static_cast<const Element*>(sources[0]) + begin;
    for (int64_t i = 0; i < length; ++i) sum[i] = loaded(first[i]);
    for (const void* const source : sources.subspan(1)) {
      const auto* next = static_cast<const Element*>(source) + begin;
      for (int64_t i = 0; i < length; ++i) {
        sum[i] = combined<kOp, Accumulator>(sum[i], loaded(next[i]));
      }
    }
    auto* result = static_cast<Element*>(out) + begin;
    for (int64_t i = 0; i < length; ++i) {
      result[i] = stored<Element>(finished<kOp>(sum[i], ranks));
    }
  }
}

template <class Element, ReduceOp kOp>
FSDP_INLINE void reduce_with(std::span<const void* const> sources, void* out, int64_t numel,
                             size_t ranks) {
  const bool divides_by_other = kOp == ReduceOp::kAvg && ranks != sources.size();
  switch (divides_by_other ? 0 : sources.size()) {
    case 2:
      return reduce_few<Element, kOp, 2>(sources, out, numel);
    case 4:
      return reduce_few<Element, kOp, 4>(sources, out, numel);
    default:
      return reduce_blocks<Element, kOp>(sources, out, numel, ranks);
  }
}

template <ReduceOp kOp>
FSDP_INLINE void reduce_with_op(const ReduceRun& run, size_t ranks) {
  visit_reduced<kOp>(run.dtype, [&](auto element) FSDP_INLINE_LAMBDA {
    reduce_with<decltype(element), kOp>(run.sources, run.out, run.numel, ranks);
  });
}

// Each operation has its own function, because one function with the vectorised loops of all types
// and operations would be too long.
FSDP_TARGET_CLONES void reduce_sum(const ReduceRun& run, size_t ranks) {
  reduce_with_op<ReduceOp::kSum>(run, ranks);
}
FSDP_TARGET_CLONES void reduce_avg(const ReduceRun& run, size_t ranks) {
  reduce_with_op<ReduceOp::kAvg>(run, ranks);
}
FSDP_TARGET_CLONES void reduce_max(const ReduceRun& run, size_t ranks) {
  reduce_with_op<ReduceOp::kMax>(run, ranks);
}

}  // namespace

void reduce_run(const ReduceRun& run, ReduceOp op, size_t ranks) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_sum(run, ranks);
    case ReduceOp::kAvg:
      return reduce_avg(run, ranks);
    case ReduceOp::kMax:
      return reduce_max(run, ranks);
  }
}

void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op) {
  CpuStream& cpu = cpu_stream(stream);
  if (cpu.is_inline()) {
    for (const ReduceRun& run : runs) reduce_run(run, op);
    return;
  }
  // The lists of sources are copied, too: the caller may free them before the stream runs this
  // task.
  std::vector<std::vector<const void*>> sources;
  for (const ReduceRun& run : runs) sources.emplace_back(run.sources.begin(), run.sources.end());
  cpu.run(
      [op, sources = std::move(sources), copy = std::vector<ReduceRun>(runs.begin(), runs.end())] {
        for (size_t i = 0; i < copy.size(); ++i) {
          ReduceRun run = copy[i];
          run.sources = sources[i];
          reduce_run(run, op);
        }
      });
}

}  // namespace fsdp::kernels::cpu
