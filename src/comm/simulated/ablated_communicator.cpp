#include "comm/simulated/ablated_communicator.h"

#include <utility>

#include "comm/ranks_view.h"
#include "runtime/buffer.h"

namespace fsdp {

AblatedCommunicator::AblatedCommunicator(std::unique_ptr<Communicator> real)
    : real_(std::move(real)),
      silent_({.rank = real_->rank(), .size = real_->size(), .peers = SimulatedPeers::kSilent}) {}

Buffer AblatedCommunicator::allocate(int64_t bytes) { return real_->allocate(bytes); }

RanksView AblatedCommunicator::map_ranks(const void* mine, int64_t bytes) {
  // The real memory is mapped, because a mapping transfers no data: units read mapped shards in
  // place.
  return real_->map_ranks(mine, bytes);
}

std::unique_ptr<Communicator> AblatedCommunicator::split(int color, int key) {
  return std::make_unique<AblatedCommunicator>(real_->split(color, key));
}

void ablate(MeshParts& parts) {
  wrap_communicators(parts, [](std::unique_ptr<Communicator> real) {
    return std::make_unique<AblatedCommunicator>(std::move(real));
  });
}

}  // namespace fsdp
