#include "memory/memory_budget.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

TEST_CASE("engines that live share one cap, and what they have left counts for the next") {
  MemoryBudget budget;
  auto first = budget.cap(1000);
  CHECK(budget.cap(1000) == first);
  CHECK(first->meter->limit() == 1000);
  first->meter->take(MemoryOwner::kTorch, 700);
  const std::shared_ptr<MemoryMeter> meter = first->meter;
  first.reset();
  CHECK(meter->limit() == 0);
  CHECK(budget.cap(0)->meter == nullptr);
  const auto next = budget.cap(2000);
  CHECK(next->meter == meter);
  CHECK(next->meter->reading().now.torch == 700);
}

TEST_CASE("a negative limit, or another one while engines live, is refused") {
  MemoryBudget budget;
  CHECK_THROWS_WITH_AS(
      budget.cap(-1),
      "memory_limit is -1, expected 0 or more (Options::memory_limit); hint: set the bytes that a "
      "rank may hold on its device, or 0 for no limit",
      InvalidArgument);
  const auto cap = budget.cap(0);
  CHECK_THROWS_WITH_AS(
      budget.cap(1000),
      "engines of one mesh have different memory limits, 0 and 1000 bytes (Options::memory_limit); "
      "all engines of a rank share one budget of device memory; hint: give all engines of a mesh "
      "the same memory_limit, or destroy the other engine first",
      InvalidArgument);
}

}  // namespace
}  // namespace fsdp
