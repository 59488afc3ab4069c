#include "comm/shm/shared_heap.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "comm/job/job_memory.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

std::shared_ptr<SharedHeap> make_heap() {
  const JobDescriptors files = create_job_files(1);
  auto memory = std::make_shared<const JobMemory>(files, 1);
  return std::make_shared<SharedHeap>(memory, memory->heap(0).data(), memory->heap(0).bytes());
}

bool is_zero(const Buffer& buffer) {
  const auto* begin = static_cast<const unsigned char*>(buffer.data());
  return std::all_of(begin, begin + buffer.bytes(), [](unsigned char byte) { return byte == 0; });
}

TEST_CASE("a heap serves zeroed, aligned blocks of every size, again and again") {
  const auto heap = make_heap();
  CHECK(!heap->allocate(0));
  for (int round = 0; round < 3; ++round) {
    std::vector<Buffer> blocks;
    for (const int64_t bytes : {1, 63, 64, 1009, 262'143, 262'144, 1'000'003}) {
      blocks.push_back(heap->allocate(bytes));
      CHECK(reinterpret_cast<uintptr_t>(blocks.back().data()) % 64 == 0);
      CHECK(is_zero(blocks.back()));
      CHECK(heap->offset_of(blocks.back().data(), bytes).has_value());
    }
    // All blocks are allocated now. If two overlap, a byte is wrong.
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::memset(blocks[i].data(), static_cast<int>(i + 1), blocks[i].bytes());
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      CHECK(*blocks[i].at(0) == static_cast<std::byte>(i + 1));
      CHECK(*blocks[i].at(blocks[i].bytes() - 1) == static_cast<std::byte>(i + 1));
    }
  }
}

TEST_CASE("memory from elsewhere is not in the heap") {
  const auto heap = make_heap();
  int outside = 0;
  CHECK(!heap->offset_of(&outside, sizeof outside));
  const Buffer block = heap->allocate(64);
  CHECK(heap->offset_of(block.at(8), 8) == *heap->offset_of(block.data(), 8) + 8);
}

TEST_CASE("large blocks go back to the system when released") {
  const auto heap = make_heap();
  void* at = nullptr;
  {
    const Buffer block = heap->allocate(1 << 20);
    std::memset(block.data(), 1, block.bytes());
    at = block.data();
  }
  std::array<unsigned char, 256> resident{};
  REQUIRE(mincore(at, 1 << 20, resident.data()) == 0);
  CHECK(
      std::none_of(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; }));
}

TEST_CASE("a block larger than the heap is refused with its size") {
  CHECK_THROWS_WITH_AS(make_heap()->allocate(int64_t{1} << 55),
                       "out of shared memory: cannot allocate 32768.0 TiB; hint: use more ranks, "
                       "smaller units or a smaller batch",
                       DeviceError);
}

TEST_CASE("ranges are merged again: what was served in pieces can be served whole") {
  RangeAllocator ranges(128, 128 + 64 * 100, 64);
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> offsets;
    while (const auto offset = ranges.take(64)) offsets.push_back(*offset);
    CHECK(offsets.size() == 100);
    std::shuffle(offsets.begin(), offsets.end(), random);
    for (const int64_t offset : offsets) ranges.give_back(offset, 64);
  }
  CHECK(ranges.take(6400) == 128);
  CHECK(!ranges.take(1));
}

TEST_CASE("job files of another number of ranks are refused") {
  const JobDescriptors files = create_job_files(2);
  CHECK_THROWS_WITH_AS(JobMemory(files, 3),
                       "WORLD_SIZE=3, but the job was started with 2 ranks (the job's shared "
                       "memory); hint: use the fsdp-run that was built with this program, and do "
                       "not change WORLD_SIZE, which fsdp-run sets",
                       InvalidArgument);
  JobDescriptors foreign;
  foreign.control = Descriptor(memfd_create("other", MFD_CLOEXEC));
  REQUIRE(ftruncate(foreign.control.get(), 1 << 16) == 0);
  CHECK_THROWS_AS(JobMemory(foreign, 3), InvalidArgument);
}

}  // namespace
}  // namespace fsdp
