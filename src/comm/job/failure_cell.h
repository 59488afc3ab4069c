// The memory in which the ranks of a host keep their job's first failure.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "comm/job/failure.h"

namespace fsdp {

// A first failure, in memory that ranks share, also between processes; all zeros is empty. The
// first writer wins for good.
struct FailureCell {
  enum class State : uint32_t { kEmpty, kBeingWritten, kWritten };

  std::atomic<State> state;
  int32_t rank;
  int32_t code;
  std::array<char, 960> what;  // fits two collectives, each as messages show it
  std::array<char, 256> where;
  std::array<char, 1024> cause;
  std::array<char, 256> hint;
};

// Keeps `failure` (texts cut to the cell's sizes) unless one is kept already. Returns true if it
// was the first. Never blocks.
bool keep_first(FailureCell& cell, const Failure& failure) noexcept;

// Returns true from the moment at which a first failure is being kept.
inline bool failed(const FailureCell& cell) {
  return cell.state.load(std::memory_order_seq_cst) != FailureCell::State::kEmpty;
}

// Returns the kept failure, if any. Waits up to 200 ms for one that is being written. If its writer
// died meanwhile, the returned text only says so.
std::optional<Failure> first_failure(const FailureCell& cell);

}  // namespace fsdp
