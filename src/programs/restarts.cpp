#include "restarts.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/job/process_end.h"

namespace fsdp {
namespace {

constexpr int kEarlyFailures = 3;
constexpr int kLongestPause = 30;  // seconds

}  // namespace

bool Restarts::gives_up(const FailedStart& failed) {
  const auto is_same = [&](const FailedStart& other) {
    return other.wait_status == failed.wait_status && other.step == failed.step;
  };
  if (needs_change(failed.code)) {
    reason_ = fmt::format("not restarted: after code {} a restart is likely to end the same way",
                          failed.code);
  } else if (failed.out_of_memory && last_ && last_->out_of_memory) {
    reason_ = "not restarted: memory was short twice in a row";
  } else if (is_fault_of_program(failed.wait_status) && last_ && is_same(*last_)) {
    reason_ = fmt::format("not restarted: {} twice in a row{}",
                          describe_end(failed.rank, failed.wait_status),
                          failed.step >= 0 ? fmt::format(" after step {}", failed.step) : "");
  } else if (used_ >= options_.max_restarts) {
    reason_ = fmt::format("{} restart{} did not help", used_, used_ == 1 ? "" : "s");
  } else {
    return false;
  }
  return true;
}

void Restarts::drop_rank(const FailedStart& failed) {
  early_failures_.resize(ranks_);
  if (failed.step >= 0) return early_failures_.assign(ranks_, 0);
  if (failed.rank < 0 || failed.rank >= ranks_) return;
  if (++early_failures_[failed.rank] < kEarlyFailures) return;
  if (options_.min_ranks == 0 || ranks_ <= options_.min_ranks) return;
  early_failures_.assign(--ranks_, 0);
}

std::optional<Restarts::Next> Restarts::after(const FailedStart& failed) {
  if (options_.max_restarts == 0) return std::nullopt;
  if (failed.saved > 0) used_ = 0;
  if (gives_up(failed)) return std::nullopt;
  last_ = failed;
  const int before = ranks_;
  drop_rank(failed);
  const std::chrono::seconds pause = options_.pause.value_or(
      std::chrono::seconds(std::min(1 << std::min(used_, 5), kLongestPause)));
  ++used_;
  reason_ = fmt::format("restart {} of {} in {} s", used_, options_.max_restarts, pause.count());
  if (!options_.several_hosts) {
    reason_ += fmt::format(", with {} rank{}", ranks_, ranks_ == 1 ? "" : "s");
  }
  if (ranks_ < before) {
    reason_ +=
        fmt::format(": rank {} failed {} times before its first step", failed.rank, kEarlyFailures);
  }
  return Next{.ranks = ranks_, .pause = pause};
}

}  // namespace fsdp
