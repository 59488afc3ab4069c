// Memory for large blocks, of which a program asks for the same ones again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace fsdp {

// [Note: kept blocks]
// A training step asks for the tensors of the step before. From the system they would come page by
// page, zeroed; malloc keeps what was freed, but does not find its place again: it cuts an aligned
// block out of a larger one, a small block in between holds its neighbours apart, and what is above
// its threshold it maps beside all that it has kept. Of BERT base's tensors, 119 MiB at their
// highest, 251 MiB were resident.
//
// Here blocks lie in one range of addresses, of which only what was written is memory. A block that
// is given back joins its free neighbours, and the next one goes to the lowest place that fits. As
// a rule all that was written is then the most that was ever taken at once, and stays for the next
// step. Where a block finds no place among what others have left, and more than that most would be
// resident, as many pages of free places go back to the system, the highest first.
//
// Thread-safe.
class BlockHeap {
 public:
  // Reserves so many bytes of addresses; where the system refuses, there is no place for any block.
  explicit BlockHeap(size_t bytes);
  ~BlockHeap();
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // At a multiple of 64, with whatever content; null where no place is large enough.
  void* take(size_t bytes);
  // Requires: `block` was taken, and not given back since.
  void give(void* block);
  bool owns(const void* block) const;
  // All pages of free places go back to the system, and what was the most is forgotten.
  void release();

 private:
  // Bytes by where they begin. No two ranges overlap or touch.
  class Ranges {
   public:
    using Map = std::map<std::byte*, size_t>;
    // Requires: none of it is there.
    void add(std::byte* begin, size_t bytes);
    // How much of it was there.
    size_t remove(std::byte* begin, size_t bytes);
    bool has_all_of(std::byte* begin, size_t bytes) const;
    const Map& all() const { return all_; }

   private:
    Map all_;
  };

  void note_written(std::byte* begin, size_t bytes);
  void release_down_to(size_t bytes);
  // What of these bytes are whole pages, and were written; how much that was.
  size_t release_pages(std::byte* begin, std::byte* end);

  std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  std::mutex mutex_;
  Ranges free_;
  Ranges::Map taken_;
  Ranges resident_;  // what may have been written since its pages were released
  size_t taken_bytes_ = 0, most_taken_bytes_ = 0, resident_bytes_ = 0;
};

}  // namespace fsdp
