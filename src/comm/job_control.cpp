#include "comm/job_control.h"

#include "comm/futex.h"

namespace fsdp {

int64_t JobControl::bytes_for(int world_size) {
  return kStatusAt +
         int64_t{world_size} * (sizeof(RankStatus) + kChannels * int64_t{sizeof(RankSlot)});
}

void JobControl::ring_all() const {
  for (int channel = 0; channel < kChannels; ++channel) {
    auto& rings = bell(channel).rings;
    rings.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(rings);
  }
}

}  // namespace fsdp
