// Compares calls of kernels on the CPU and on the simulated GPU.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels_simulated/support/arena.h"
#include "kernels_simulated/support/simulated_kernels.h"
#include "runtime/device.h"

namespace fsdp::test {

// The largest number of entries that in_tables passes to one call.
inline size_t most_entries = SIZE_MAX;

template <class Run, class Call>
void in_tables(const std::vector<Run>& runs, Call call) {
  std::span<const Run> left = runs;
  while (!left.empty()) {
    const size_t count = std::min(left.size(), most_entries);
    call(left.first(count));
    left = left.subspan(count);
  }
}

// Compares call(stream, base) on the CPU and on the simulated GPU with three schedules. In one of
// them the tables are short, because short tables have their own kernels.
template <class Call>
void check_same_bits(const Arena& operands, Call call) {
  const auto host = cpu_device().make_stream({.name = "host", .runs_beside = false});
  const auto gpu = test::simulated_device().make_stream({.name = "gpu", .runs_beside = false});
  Arena expected = operands.placed();
  call(*host, expected.base());
  const std::vector<std::byte> bytes = expected.operands();
  for (const uint32_t seed : {1U, 1000U, 2000U}) {
    CAPTURE(seed);
    test::set_schedule(seed);
    most_entries = seed == 1000 ? 16 : SIZE_MAX;
    Arena found = operands.placed();
    call(*gpu, found.base());
    const bool same = found.operands() == bytes;
    CHECK(same);
  }
}

// Calls visit(numel, misaligned, misaligned of another operand). The distances are in elements.
template <class Visit>
void for_each_size(int64_t element_bytes, Visit visit) {
  const int64_t width = 16 / element_bytes;
  for (const int64_t numel : {1, 7, 33, 1009}) {
    for (int64_t at = 0; at < width; ++at) {
      visit(numel, at, at);
      visit(numel, at, (at + 1) % width);
    }
  }
  visit(0, 0, 0);
  visit(2 * 4096, 0, 0);
  visit(4099, 1 % width, 1 % width);
  visit(4099, 1 % width, 2 % width);
}

}  // namespace fsdp::test
