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
// is given back joins its free neighbours, and the next one goes to the lowest place that fits, so
// that what is resident is about the most that was ever taken at once.
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
  // Pages of free places go back to the system.
  void release();

 private:
  using Places = std::map<std::byte*, size_t>;  // by where they begin: their bytes

  void add_free(std::byte* begin, size_t bytes);

  std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  std::mutex mutex_;
  Places free_;  // no two touch
  Places taken_;
};

}  // namespace fsdp
