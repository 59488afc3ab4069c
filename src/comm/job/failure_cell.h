// The memory in which the ranks of a host store their job's first failure.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "comm/job/failure.h"

namespace fsdp {

// A first failure in memory that ranks share, also between processes. A cell of zeros is empty. The
// first writer wins, and later writers change nothing.
struct FailureCell {
  enum class State : uint32_t { kEmpty, kBeingWritten, kWritten };

  std::atomic<State> state;
  int32_t rank;
  int32_t code;
  std::array<char, 960> what;  // large enough for the texts of two collectives in messages
  std::array<char, 256> where;
  std::array<char, 1024> cause;
  std::array<char, 256> hint;
};

// Stores `failure` unless the cell already holds a failure. Texts are cut to the cell's sizes.
// Returns true if this failure was the first. Never blocks.
bool keep_first(FailureCell& cell, const Failure& failure) noexcept;

// Returns true as soon as a writer has begun to store a first failure.
inline bool failed(const FailureCell& cell) {
  return cell.state.load(std::memory_order_seq_cst) != FailureCell::State::kEmpty;
}

// Returns the stored failure, if any. Waits up to 200 ms for a failure that is being written. If
// its writer has died meanwhile, the returned text says only that a rank died while it reported an
// error.
std::optional<Failure> first_failure(const FailureCell& cell);

}  // namespace fsdp
