// Where the ranks of a host keep their job's first failure.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "comm/job/failure.h"

namespace fsdp {

// Lies, zeroed, in memory that ranks share, also between processes. The first writer wins for ever.
struct FailureCell {
  enum class State : uint32_t { kEmpty, kBeingWritten, kWritten };

  std::atomic<State> state;
  int32_t rank;
  int32_t code;
  std::array<char, 960> what;  // two collectives with all that is shown of them
  std::array<char, 256> where;
  std::array<char, 1024> cause;
  std::array<char, 256> hint;
};

// Effects: keeps `failure` (texts cut to the cell's sizes) unless one is kept already.
// True if it was the first. Never blocks.
bool keep_first(FailureCell& cell, const Failure& failure) noexcept;

// True from the moment a first failure is being kept.
inline bool failed(const FailureCell& cell) {
  return cell.state.load(std::memory_order_seq_cst) != FailureCell::State::kEmpty;
}

// The failure kept, if any. A writer that died in the middle leaves one without text.
std::optional<Failure> first_failure(const FailureCell& cell);

}  // namespace fsdp
