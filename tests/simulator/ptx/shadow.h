// State of each byte of memory: whether it has a value, and the threads that accessed it in a
// launch.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::testing::ptx {

// The last accesses of a launch to two neighbouring bytes. Threads are numbered in their block.
struct Cell {
  static constexpr uint32_t kNobody = 0xffffffff;   // no block
  static constexpr uint32_t kSeveral = 0xfffffffe;  // threads of several blocks
  static constexpr int16_t kSeveralThreads = -1;    // several threads of one block
  uint32_t launch = 0;                              // an earlier one: the cell counts as new
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

// The state of the bytes in [begin, end). Requires: all calls pass bytes inside it.
class Shadow {
 public:
  Shadow(uint64_t begin, uint64_t end, bool is_defined);

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }

  bool is_defined(uint64_t address, int64_t bytes) const;
  void define(uint64_t address, int64_t bytes, bool is_defined = true);

  // Starts noting accesses of the launch with this number. Returns true if it is the launch's first
  // one here.
  bool begin_launch(uint32_t launch);
  void note(uint64_t address, int64_t bytes, bool writes);
  // Appends the bytes that this launch has accessed, in ascending order; adjacent ranges are
  // merged.
  void append_touched(bool writes, std::vector<ByteRange>& to) const;

  // Allocates cells when the first launch needs one: other work needs none.
  Cell& cell(uint64_t address) {
    if (cells_.empty()) cells_.resize((end_ - base_) / 2 + 1);
    return cells_[(address - base_) / 2];
  }

 private:
  using Bits = std::vector<uint64_t>;  // a bit for each byte

  uint64_t begin_, end_;
  uint64_t base_;  // address of the first bit: begin_ rounded down to a word of bits
  uint32_t launch_ = 0;
  Bits defined_, read_, written_;
  std::vector<Cell> cells_;
};

}  // namespace fsdp::testing::ptx
