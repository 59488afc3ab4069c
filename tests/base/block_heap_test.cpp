#include "base/block_heap.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace fsdp {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHeapBytes = 256 * kPage;

int64_t resident_pages(void* block, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kPage);
  REQUIRE(mincore(block, bytes, pages.data()) == 0);
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
}

struct Block {
  unsigned char* data;
  size_t bytes;
  unsigned char content;

  void fill() const { std::memset(data, content, bytes); }
  bool is_intact() const {
    return std::all_of(data, data + bytes, [&](unsigned char byte) { return byte == content; });
  }
};

// Allocates and frees blocks at random, with at most `most` blocks at the same time. Checks that
// allocated blocks keep their content.
void take_and_give(BlockHeap& heap, unsigned seed, size_t most) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  bool intact = true;
  for (int turn = 0; turn < 3000; ++turn) {
    if (blocks.size() < most && random() % 2 == 0) {
      const size_t bytes = 1 + random() % (kHeapBytes / 32);
      void* const data = heap.take(bytes);
      if (data == nullptr) continue;
      blocks.push_back(
          {static_cast<unsigned char*>(data), bytes, static_cast<unsigned char>(random() % 256)});
      blocks.back().fill();
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      intact = intact && blocks.back().is_intact();
      heap.give(blocks.back().data);
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) {
    intact = intact && block.is_intact();
    heap.give(block.data);
  }
  CHECK(intact);
}

TEST_CASE("a block goes to the lowest place that fits") {
  BlockHeap heap(kHeapBytes);
  void* const first = heap.take(1000);
  void* const second = heap.take(5000);
  void* const third = heap.take(1);
  CHECK(first < second);
  CHECK(second < third);
  for (void* const block : {first, second, third}) {
    CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
    CHECK(heap.owns(block));
  }
  heap.give(first);
  heap.give(third);
  CHECK(heap.take(1024) == first);
  CHECK(heap.take(1024) == third);
  heap.give(second);
  CHECK(heap.take(4000) == second);
}

TEST_CASE("what is free joins its neighbours, in whatever order they end") {
  BlockHeap heap(kHeapBytes);
  std::array order{0, 1, 2, 3};
  do {
    std::array<void*, 4> blocks{};
    for (void*& block : blocks) block = heap.take(kHeapBytes / 4);
    CHECK(heap.take(1) == nullptr);
    for (const int i : order) heap.give(blocks[i]);
    void* const whole = heap.take(kHeapBytes);
    REQUIRE(whole == blocks[0]);
    heap.give(whole);
  } while (std::ranges::next_permutation(order).found);
}

TEST_CASE("blocks keep their content and leave nothing behind, of several threads as well") {
  BlockHeap heap(kHeapBytes);
  for (unsigned seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    take_and_give(heap, seed, 40);
  }
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&heap, seed] { take_and_give(heap, seed, 10); });
  }
  for (std::thread& thread : threads) thread.join();
  void* const whole = heap.take(kHeapBytes);
  REQUIRE(whole != nullptr);
  heap.give(whole);
}

TEST_CASE("pages of blocks are kept until they are released, those in use always") {
  BlockHeap heap(kHeapBytes);
  void* const before = heap.take(kHeapBytes / 2);
  void* const block = heap.take(8 * kPage);
  void* const behind = heap.take(100);
  for (void* const written : {before, block, behind}) std::memset(written, 7, 100);
  std::memset(block, 7, 8 * kPage);
  heap.give(block);
  CHECK(resident_pages(block, 8 * kPage) == 8);
  heap.release();
  CHECK(resident_pages(block, 8 * kPage) == 0);
  CHECK(resident_pages(before, kPage) == 1);
  CHECK(resident_pages(behind, kPage) == 1);
  CHECK(*static_cast<unsigned char*>(behind) == 7);
  CHECK(heap.take(8 * kPage) == block);
}

TEST_CASE("no more is resident than was ever taken at once") {
  BlockHeap heap(kHeapBytes);
  auto* const begin = static_cast<std::byte*>(heap.take(64 * kPage));
  madvise(begin, kHeapBytes, MADV_NOHUGEPAGE);  // pages are counted one by one
  heap.give(begin);
  const auto take = [&](size_t pages) {
    void* const block = heap.take(pages * kPage);
    std::memset(block, 7, pages * kPage);
    return static_cast<std::byte*>(block);
  };
  const auto resident = [&] { return resident_pages(begin, kHeapBytes); };
  constexpr int64_t kMost = 92;  // 2 small blocks and the large block
  for (int turn = 0; turn < 3; ++turn) {
    // The free ranges between the small blocks are too small for the large block.
    std::array<std::byte*, 4> small{};
    for (std::byte*& block : small) block = take(16);
    CHECK(small[0] == begin);
    for (const int i : {0, 2}) heap.give(small[i]);
    std::byte* const large = take(60);
    CHECK(large > small[3]);
    CHECK(resident() <= kMost);
    for (const int i : {1, 3}) CHECK(*small[i] == std::byte{7});
    heap.give(large);
    for (const int i : {1, 3}) heap.give(small[i]);
    CHECK(resident() <= kMost);
  }
  heap.release();
  CHECK(resident() == 0);
}

TEST_CASE("a heap that the system refuses, and a block that none can hold, have no place") {
  BlockHeap refused(size_t{1} << 60);
  CHECK(refused.take(1) == nullptr);
  CHECK(!refused.owns(nullptr));
  refused.release();
  BlockHeap heap(kHeapBytes);
  CHECK(heap.take(kHeapBytes + 1) == nullptr);
  CHECK(heap.take(SIZE_MAX) == nullptr);
  int elsewhere = 0;
  CHECK(!heap.owns(&elsewhere));
}

}  // namespace
}  // namespace fsdp
