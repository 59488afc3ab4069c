#include "comm/job/control_segment.h"

#include <fmt/format.h>

#include "comm/job/futex.h"

namespace fsdp {

std::string describe(RankRange ranks) {
  if (ranks.count == 1) return fmt::format("rank {}", ranks.begin);
  return fmt::format("ranks {} to {}", ranks.begin, int64_t{ranks.begin} + ranks.count - 1);
}

int64_t ControlSegment::bytes_for(int world_size, RankRange local) {
  const int64_t reported = local.count == world_size ? 0 : world_size;
  return ControlSegment(nullptr, world_size, local).reported_at() +
         reported * kOrders * int64_t{sizeof(uint64_t)};
}

void ControlSegment::wake_all() const {
  for (int channel = 0; channel < kChannels; ++channel) {
    auto& wakes = wait_queue(channel).wakes;
    // `wakes` changes before ranks are woken. So a rank that is about to sleep finds another value
    // than it has read before, and does not sleep.
    wakes.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(wakes);
  }
}

}  // namespace fsdp
