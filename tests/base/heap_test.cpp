#include "base/heap.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers replace malloc
namespace fsdp {
namespace {

constexpr size_t kBlockBytes = 8 << 20;
constexpr int64_t kPages = kBlockBytes / 4096;

// Returns the number of pages that the system supplied while a block was allocated, written and
// freed.
int64_t pages_supplied() {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  void* block = std::malloc(kBlockBytes);
  // The system supplies huge pages as 512 pages at once, so they are disabled here.
  const auto first_page = (reinterpret_cast<uintptr_t>(block) + 4095) / 4096 * 4096;
  madvise(reinterpret_cast<void*>(first_page), kBlockBytes - 4096, MADV_NOHUGEPAGE);
  std::memset(block, 1, kBlockBytes);
  asm volatile("" : : "r"(block) : "memory");
  std::free(block);
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST_CASE(
    "malloc's large blocks go back to the system during construction and are kept for the steps") {
  return_freed_blocks();
  CHECK(pages_supplied() >= kPages - 2);
  CHECK(pages_supplied() >= kPages - 2);
  keep_freed_blocks();
  pages_supplied();
  CHECK(pages_supplied() < kPages / 100);
}

TEST_CASE("kept blocks are there for the steps, are large, and end whenever they do") {
  constexpr size_t kBytes = 1 << 20;
  return_freed_blocks();
  CHECK(kept_block(kBytes) == nullptr);
  keep_freed_blocks();
  CHECK(kept_block(1000) == nullptr);
  void* const block = kept_block(kBytes);
  REQUIRE(block != nullptr);
  std::memset(block, 1, kBytes);
  CHECK(give_kept_block(block));
  CHECK(kept_block(kBytes) == block);
  return_freed_blocks();
  CHECK(give_kept_block(block));
  int of_malloc = 0;
  CHECK(!give_kept_block(&of_malloc));
}

}  // namespace
}  // namespace fsdp
#endif
