// BlockHeap: a heap for large blocks that a program allocates again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace fsdp {

// [Note: kept blocks] A training step allocates the same tensors as the step before. The system
// must zero every page that it provides, which is slow. malloc can keep freed memory, but often the
// kept memory does not fit the blocks of the next step, for three reasons. malloc cuts an aligned
// block out of a larger one, and the rest is too small for the next such block. A small block can
// separate two free neighbours. A block above the mmap threshold gets a separate mapping. With
// malloc, BERT base used at most 119 MiB of tensors at a time, but 251 MiB were resident.
//
// In a BlockHeap all blocks are in one range of addresses, and only written pages occupy memory. A
// freed block is joined with its free neighbours. An allocation uses the lowest free range that
// fits. So the resident memory usually equals the most memory that was ever allocated at a time,
// and it is kept for the next step. If a new block would make more memory resident than this
// maximum, pages of free ranges are returned to the system, those with the highest addresses first.
//
// Thread-safe.
class BlockHeap {
 public:
  // Reserves `bytes` bytes of address space. If this fails, every take() returns null.
  explicit BlockHeap(size_t bytes);
  ~BlockHeap();
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // Allocates an uninitialised block, aligned to 64 bytes. Returns null if no free range is large
  // enough.
  void* take(size_t bytes);
  // Frees a block. Requires: take() returned this block, and the block is not freed yet.
  void give(void* block);
  bool owns(const void* block) const;
  // Returns all pages of free ranges to the system, and resets the maximum of bytes in use.
  void release();

 private:
  // A set of byte ranges, keyed by their first byte. No two ranges overlap or are adjacent.
  class Ranges {
   public:
    using Map = std::map<std::byte*, size_t>;
    // Requires: none of these bytes is in a range.
    void add(std::byte* begin, size_t bytes);
    // Removes the bytes from the ranges. Returns the number of bytes that were in a range.
    size_t remove(std::byte* begin, size_t bytes);
    bool has_all_of(std::byte* begin, size_t bytes) const;
    const Map& all() const { return all_; }

   private:
    Map all_;
  };

  void note_written(std::byte* begin, size_t bytes);
  void release_down_to(size_t bytes);
  // Releases the pages that are completely within these bytes. Returns how many of the released
  // bytes were resident.
  size_t release_pages(std::byte* begin, std::byte* end);

  std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  std::mutex mutex_;
  Ranges free_;
  Ranges::Map taken_;
  Ranges resident_;  // pages that may have been written since their release
  size_t taken_bytes_ = 0, most_taken_bytes_ = 0, resident_bytes_ = 0;
};

}  // namespace fsdp
