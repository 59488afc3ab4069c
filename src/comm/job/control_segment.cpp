#include "comm/job/control_segment.h"

#include "comm/job/futex.h"

namespace fsdp {

int64_t ControlSegment::bytes_for(int world_size) {
  return kEndpointsAt + int64_t{world_size} *
                            (kChannels * int64_t{sizeof(Endpoint)} + int64_t{sizeof(RankStatus)} +
                             kOrders * int64_t{sizeof(PostedCollectives)});
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
