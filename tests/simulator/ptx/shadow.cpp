#include "simulator/ptx/shadow.h"

#include <algorithm>
#include <bit>

namespace fsdp::testing::ptx {
namespace {

constexpr uint64_t kBits = 64;

// Calls visit(word, mask) for each word whose bits represent bytes of [at, at + count).
template <class Visit>
void for_each_word(uint64_t at, uint64_t count, Visit visit) {
  while (count > 0) {
    const uint64_t first = at % kBits;
    const uint64_t here = std::min(count, kBits - first);
    const uint64_t mask = (here == kBits ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << first;
    visit(at / kBits, mask);
    at += here;
    count -= here;
  }
}

}  // namespace

Shadow::Shadow(uint64_t begin, uint64_t end, bool is_defined)
    : begin_(begin), end_(end), base_(begin / kBits * kBits) {
  const uint64_t words = (end - base_ + kBits - 1) / kBits;
  defined_.assign(words, is_defined ? ~uint64_t{0} : 0);
  read_.resize(words);
  written_.resize(words);
}

bool Shadow::is_defined(uint64_t address, int64_t bytes) const {
  bool all = true;
  for_each_word(address - base_, static_cast<uint64_t>(bytes), [&](uint64_t word, uint64_t mask) {
    all = all && (defined_[word] & mask) == mask;
  });
  return all;
}

void Shadow::define(uint64_t address, int64_t bytes, bool is_defined) {
  for_each_word(address - base_, static_cast<uint64_t>(bytes), [&](uint64_t word, uint64_t mask) {
    is_defined ? defined_[word] |= mask : defined_[word] &= ~mask;
  });
}

bool Shadow::begin_launch(uint32_t launch) {
  if (launch_ == launch) return false;
  launch_ = launch;
  std::fill(read_.begin(), read_.end(), 0);
  std::fill(written_.begin(), written_.end(), 0);
  return true;
}

void Shadow::note(uint64_t address, int64_t bytes, bool writes) {
  for_each_word(address - base_, static_cast<uint64_t>(bytes),
                [&](uint64_t word, uint64_t mask) { (writes ? written_ : read_)[word] |= mask; });
}

void Shadow::append_touched(bool writes, std::vector<ByteRange>& to) const {
  const Bits& bits = writes ? written_ : read_;
  for (uint64_t word = 0; word < bits.size(); ++word) {
    for (uint64_t left = bits[word]; left != 0;) {
      const auto first = static_cast<uint64_t>(std::countr_zero(left));
      const auto count = static_cast<uint64_t>(std::countr_one(left >> first));
      const uint64_t begin = base_ + word * kBits + first;
      if (!to.empty() && to.back().end == begin) {
        to.back().end = begin + count;
      } else {
        to.push_back({begin, begin + count});
      }
      // A shift by the width of the type is undefined, so the case up to the last bit is separate.
      left = first + count == kBits ? 0 : left >> (first + count) << (first + count);
    }
  }
}

}  // namespace fsdp::testing::ptx
