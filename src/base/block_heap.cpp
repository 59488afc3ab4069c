#include "base/block_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iterator>

namespace fsdp {
namespace {

constexpr size_t kAlignment = 64;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

BlockHeap::BlockHeap(size_t bytes) {
  void* const range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
  begin_ = static_cast<std::byte*>(range);
  bytes_ = bytes;
  madvise(begin_, bytes, MADV_HUGEPAGE);  // where the system leaves it to the program
  free_.emplace(begin_, bytes);
}

BlockHeap::~BlockHeap() {
  if (begin_ != nullptr) munmap(begin_, bytes_);
}

void* BlockHeap::take(size_t bytes) {
  if (bytes > bytes_) return nullptr;
  const size_t wanted = rounded(std::max<size_t>(bytes, 1), kAlignment);
  const std::lock_guard lock(mutex_);
  const auto place = std::ranges::find_if(
      free_, [&](const Places::value_type& free) { return free.second >= wanted; });
  if (place == free_.end()) return nullptr;
  const auto [begin, size] = *place;
  free_.erase(place);
  if (size > wanted) free_.emplace(begin + wanted, size - wanted);
  taken_.emplace(begin, wanted);
  return begin;
}

void BlockHeap::give(void* block) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(static_cast<std::byte*>(block));
  const auto [begin, size] = *taken;
  taken_.erase(taken);
  add_free(begin, size);
}

void BlockHeap::add_free(std::byte* begin, size_t bytes) {
  auto next = free_.upper_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, begin, bytes);
}

bool BlockHeap::owns(const void* block) const {
  const auto* const at = static_cast<const std::byte*>(block);
  return std::less_equal<>()(begin_, at) && std::less<>()(at, begin_ + bytes_);
}

void BlockHeap::release() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, size] : free_) {
    const size_t first = rounded(static_cast<size_t>(begin - begin_), page);
    const size_t last = static_cast<size_t>(begin - begin_) + size;
    if (first + page <= last) madvise(begin_ + first, (last - first) / page * page, MADV_DONTNEED);
  }
}

}  // namespace fsdp
