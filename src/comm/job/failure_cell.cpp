#include "comm/job/failure_cell.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

namespace fsdp {
namespace {

using State = FailureCell::State;

template <size_t N>
void put(std::array<char, N>& field, std::string_view text) {
  // Cuts a text that is too long and always terminates it with 0.
  const size_t length = std::min(text.size(), N - 1);
  std::copy_n(text.data(), length, field.data());
  field[length] = '\0';
}

}  // namespace

bool keep_first(FailureCell& cell, const Failure& failure) noexcept {
  // One rank wins the compare-and-exchange and is then the only writer of the fields. The store of
  // kWritten makes the fields visible to readers.
  State expected = State::kEmpty;
  if (!cell.state.compare_exchange_strong(expected, State::kBeingWritten,
                                          std::memory_order_seq_cst)) {
    return false;
  }
  cell.rank = failure.rank;
  cell.code = static_cast<int32_t>(failure.code);
  put(cell.what, failure.text.what);
  put(cell.where, failure.text.where);
  put(cell.cause, failure.text.cause);
  put(cell.hint, failure.text.hint);
  cell.state.store(State::kWritten, std::memory_order_seq_cst);
  return true;
}

std::optional<Failure> first_failure(const FailureCell& cell) {
  if (cell.state.load(std::memory_order_seq_cst) == State::kEmpty) return std::nullopt;
  // The wait has a limit, because the writer's process may have died after it stored kBeingWritten
  // and before it stored kWritten (keep_first).
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (cell.state.load(std::memory_order_seq_cst) == State::kBeingWritten) {
    if (std::chrono::steady_clock::now() > give_up) {
      return Failure{
          .rank = -1,
          .code = ExitCode::kPeerFailed,
          .text = {.what = "a rank died while it reported an error", .hint = "restart the job"}};
    }
    std::this_thread::yield();
  }
  return Failure{.rank = cell.rank,
                 .code = static_cast<ExitCode>(cell.code),
                 .text = {.what = cell.what.data(),
                          .where = cell.where.data(),
                          .cause = cell.cause.data(),
                          .hint = cell.hint.data()}};
}

}  // namespace fsdp
