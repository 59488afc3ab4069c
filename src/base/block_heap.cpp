#include "base/block_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iterator>

namespace fsdp {
namespace {

// The alignment that LibTorch uses for CPU tensors.
constexpr size_t kAlignment = 64;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

// Adds the bytes as a range. If a range ends directly before these bytes or begins directly after
// them, joins the ranges into one.
void BlockHeap::Ranges::add(std::byte* begin, size_t bytes) {
  auto next = all_.upper_bound(begin);
  if (next != all_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = all_.erase(next);
  }
  if (next != all_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  all_.emplace_hint(next, begin, bytes);
}

// Removes the bytes from every range that they overlap.
size_t BlockHeap::Ranges::remove(std::byte* begin, size_t bytes) {
  std::byte* const end = begin + bytes;
  size_t removed = 0;
  auto at = all_.upper_bound(begin);
  // Start at the preceding range, because it may overlap these bytes.
  if (at != all_.begin()) --at;
  while (at != all_.end() && at->first < end) {
    const auto [first, size] = *at;
    std::byte* const last = first + size;
    std::byte* const cut_begin = std::max(first, begin);
    std::byte* const cut_end = std::min(last, end);
    if (cut_begin >= cut_end) {
      ++at;
      continue;
    }
    removed += static_cast<size_t>(cut_end - cut_begin);
    at = all_.erase(at);
    if (first < cut_begin) all_.emplace(first, cut_begin - first);
    if (cut_end < last) all_.emplace(cut_end, last - cut_end);
  }
  return removed;
}

// Adjacent ranges are always joined. So if all of the bytes are in ranges, they are in one range.
bool BlockHeap::Ranges::has_all_of(std::byte* begin, size_t bytes) const {
  const auto next = all_.upper_bound(begin);
  if (next == all_.begin()) return false;
  const auto [first, size] = *std::prev(next);
  return begin + bytes <= first + size;
}

BlockHeap::BlockHeap(size_t bytes) {
  void* const range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // If the system refuses the addresses (ulimit -v), take() finds no block and returns null.
  if (range == MAP_FAILED) return;
  begin_ = static_cast<std::byte*>(range);
  bytes_ = bytes;
  madvise(begin_, bytes, MADV_HUGEPAGE);  // needed if the system's huge-page policy is "madvise"
  free_.add(begin_, bytes);
}

BlockHeap::~BlockHeap() {
  if (begin_ != nullptr) munmap(begin_, bytes_);
}

void* BlockHeap::take(size_t bytes) {
  if (bytes > bytes_) return nullptr;
  const size_t wanted = rounded(std::max<size_t>(bytes, 1), kAlignment);
  const std::lock_guard lock(mutex_);
  // First fit: the lowest free range that is large enough. So most free memory is at the highest
  // addresses, and pages are released from there.
  const auto place = std::ranges::find_if(
      free_.all(), [&](const Ranges::Map::value_type& free) { return free.second >= wanted; });
  if (place == free_.all().end()) return nullptr;
  std::byte* const begin = place->first;
  free_.remove(begin, wanted);
  taken_.emplace(begin, wanted);
  taken_bytes_ += wanted;
  most_taken_bytes_ = std::max(most_taken_bytes_, taken_bytes_);
  // The caller will write to the block, so its pages count as resident from now on.
  note_written(begin, wanted);
  return begin;
}

void BlockHeap::give(void* block) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(static_cast<std::byte*>(block));
  const auto [begin, size] = *taken;
  taken_.erase(taken);
  taken_bytes_ -= size;
  free_.add(begin, size);
}

// Counts a block as resident. If the resident bytes then exceed the most bytes that were ever in
// use at a time, some pages of free ranges are not needed. The excess is released.
void BlockHeap::note_written(std::byte* begin, size_t bytes) {
  if (resident_.has_all_of(begin, bytes)) return;
  resident_bytes_ += bytes - resident_.remove(begin, bytes);
  resident_.add(begin, bytes);
  if (resident_bytes_ > most_taken_bytes_) release_down_to(most_taken_bytes_);
}

void BlockHeap::release_down_to(size_t bytes) {
  for (auto free = free_.all().rbegin(); free != free_.all().rend(); ++free) {
    // Each iteration finds the highest resident range below `end`.
    std::byte* end = free->first + free->second;
    while (resident_bytes_ > bytes) {
      auto written = resident_.all().lower_bound(end);
      if (written == resident_.all().begin()) break;
      --written;
      end = std::min(end, written->first + written->second);
      // Round down to a page. A part of a page cannot be released, so without this the loop would
      // never end.
      end = begin_ + static_cast<size_t>(end - begin_) / page_bytes() * page_bytes();
      std::byte* const begin = std::max(written->first, free->first);
      if (begin >= end) {  // no whole page is left in this range
        if (begin == free->first) break;
        end = begin;
        continue;
      }
      const size_t excess = rounded(resident_bytes_ - bytes, page_bytes());
      const size_t length = std::min(excess, static_cast<size_t>(end - begin));
      resident_bytes_ -= release_pages(end - length, end);
      end -= length;
    }
  }
}

// Releases only whole pages. At either end, the other part of a page may belong to a block in use.
size_t BlockHeap::release_pages(std::byte* begin, std::byte* end) {
  const size_t first = rounded(static_cast<size_t>(begin - begin_), page_bytes());
  const size_t last = static_cast<size_t>(end - begin_) / page_bytes() * page_bytes();
  if (first >= last) return 0;
  madvise(begin_ + first, last - first, MADV_DONTNEED);
  return resident_.remove(begin_ + first, last - first);
}

bool BlockHeap::owns(const void* block) const {
  const auto* const at = static_cast<const std::byte*>(block);
  return std::less_equal<>()(begin_, at) && std::less<>()(at, begin_ + bytes_);
}

void BlockHeap::release() {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, size] : free_.all())
    resident_bytes_ -= release_pages(begin, begin + size);
  most_taken_bytes_ = taken_bytes_;
}

}  // namespace fsdp
