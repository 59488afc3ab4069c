// BlockHeap: memory for large blocks that a program allocates again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace fsdp {

// [Note: kept blocks]
// A training step allocates the same tensors as the step before. The system provides memory page by
// page, zeroed. malloc keeps what was freed but does not find its place again: it cuts an aligned
// block out of a larger one, a small block separates two free neighbours, and a block above its
// threshold is mapped beside all that is kept. BERT base has tensors of at most 119 MiB at a time;
// 251 MiB were resident.
//
// Here all blocks are in one range of addresses, of which only written pages are memory. A freed
// block is joined with its free neighbours, and an allocation uses the lowest place that fits. So
// all that was written is usually the most that was ever allocated at once, and it stays for the
// next step. If a block finds no such place and more than that most would be resident, pages of
// free places return to the system, the highest first.
//
// Thread-safe.
class BlockHeap {
 public:
  // Reserves `bytes` bytes of addresses; if the system refuses, every take() returns null.
  explicit BlockHeap(size_t bytes);
  ~BlockHeap();
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // Allocates a block at a multiple of 64, uninitialised; null if no free place is large enough.
  void* take(size_t bytes);
  // Frees a block. Requires: take() returned it, and it is not freed yet.
  void give(void* block);
  bool owns(const void* block) const;
  // Returns all pages of free places to the system, and forgets the most that was in use.
  void release();

 private:
  // Ranges of bytes by their first byte. No two overlap or touch.
  class Ranges {
   public:
    using Map = std::map<std::byte*, size_t>;
    // Requires: no range has any of these bytes.
    void add(std::byte* begin, size_t bytes);
    // Returns how many of the bytes were in ranges.
    size_t remove(std::byte* begin, size_t bytes);
    bool has_all_of(std::byte* begin, size_t bytes) const;
    const Map& all() const { return all_; }

   private:
    Map all_;
  };

  void note_written(std::byte* begin, size_t bytes);
  void release_down_to(size_t bytes);
  // Releases those of the bytes that form whole pages; returns how many of them were resident.
  size_t release_pages(std::byte* begin, std::byte* end);

  std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  std::mutex mutex_;
  Ranges free_;
  Ranges::Map taken_;
  Ranges resident_;  // may have been written since its pages were released
  size_t taken_bytes_ = 0, most_taken_bytes_ = 0, resident_bytes_ = 0;
};

}  // namespace fsdp
