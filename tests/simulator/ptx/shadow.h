// The state of each byte of memory: whether it has a value, and which threads accessed it in the
// current launch.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::testing::ptx {

// The last accesses of a launch to two neighbouring bytes. Threads are numbered in their block.
struct Cell {
  static constexpr uint32_t kNobody = 0xffffffff;   // no block
  static constexpr uint32_t kSeveral = 0xfffffffe;  // threads of several blocks
  static constexpr int16_t kSeveralThreads = -1;    // several threads of one block
  uint32_t launch = 0;                              // the cell is empty in any later launch
  uint32_t writer_block = kNobody;
  uint32_t reader_block = kNobody;
  uint32_t written_at = 0;  // Epoch::at_once
  uint32_t read_at = 0;
  int16_t writer = 0;
  int16_t reader = 0;
  uint8_t written = 0;  // a bit for each of the two bytes
  uint8_t read = 0;
};

struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// The state of the bytes in [begin, end). Requires: callers pass only bytes in this range.
class Shadow {
 public:
  Shadow(uint64_t begin, uint64_t end, bool is_defined);

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }

  bool is_defined(uint64_t address, int64_t bytes) const;
  void define(uint64_t address, int64_t bytes, bool is_defined = true);

  // Starts to record accesses of the launch with this number. Returns true if this is the launch's
  // first access to this shadow.
  bool begin_launch(uint32_t launch);
  void note(uint64_t address, int64_t bytes, bool writes);
  // Appends the ranges of bytes that this launch has accessed, in ascending order. Adjacent ranges
  // are merged.
  void append_touched(bool writes, std::vector<ByteRange>& to) const;

  // Returns the cell of an address. Cells are allocated when a launch first needs one, because
  // other work needs none.
  Cell& cell(uint64_t address) {
    if (cells_.empty()) cells_.resize((end_ - base_) / 2 + 1);
    return cells_[(address - base_) / 2];
  }

 private:
  using Bits = std::vector<uint64_t>;  // a bit for each byte

  uint64_t begin_, end_;
  uint64_t base_;  // address of the first bit: begin_, rounded down to a whole word
  uint32_t launch_ = 0;
  Bits defined_, read_, written_;
  std::vector<Cell> cells_;
};

}  // namespace fsdp::testing::ptx
