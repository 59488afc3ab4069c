#include "comm/reduce/reduce_in_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "comm/reduce/streaming_copy.h"
#include "kernels/cpu/reduce.h"

namespace fsdp {
namespace {

constexpr int64_t kStreamedBlockBytes = 8192;

// Reduces blocks into a buffer in the first-level cache and writes them from there to memory with
// streaming stores.
void reduce_streaming(const kernels::ReduceRun& run, ReduceOp op, size_t divisor) {
  alignas(64) std::array<std::byte, kStreamedBlockBytes> block;
  std::vector<const void*> from(run.sources.begin(), run.sources.end());
  auto* to = static_cast<std::byte*>(run.out);
  const int64_t block_numel = kStreamedBlockBytes / size_of(run.dtype);
  for (int64_t begin = 0; begin < run.numel; begin += block_numel) {
    const int64_t length = std::min(block_numel, run.numel - begin);
    const int64_t bytes = length * size_of(run.dtype);
    kernels::cpu::reduce_run({from, block.data(), length, run.dtype}, op, divisor);
    copy_streaming(to, block.data(), bytes);
    to += bytes;
    for (const void*& source : from) source = static_cast<const std::byte*>(source) + bytes;
  }
  finish_streaming();
}

}  // namespace

void reduce_in_order(std::span<const void* const> sources, void* out, int64_t numel, DType dtype,
                     ReduceOp op, size_t ranks) {
  const kernels::ReduceRun run{sources, out, numel, dtype};
  // Counts the bytes that all ranks read, for the usual case: each source belongs to one rank, and
  // each rank reduces as many elements as this rank.
  const auto readers = static_cast<int64_t>(sources.size());
  const bool streams = readers * readers * numel * size_of(dtype) >= kStreamFromBytes;
  const size_t divisor = ranks == 0 ? sources.size() : ranks;
  streams ? reduce_streaming(run, op, divisor) : kernels::cpu::reduce_run(run, op, divisor);
}

}  // namespace fsdp
