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
  return real_->map_ranks(mine, bytes);
}

void AblatedCommunicator::all_gather(std::span<const CollectivePart> parts, CollectiveTag tag,
                                     Stream& stream) {
  silent_.all_gather(parts, tag, stream);
}

void AblatedCommunicator::reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op,
                                         CollectiveTag tag, Stream& stream) {
  silent_.reduce_scatter(parts, op, tag, stream);
}

void AblatedCommunicator::all_reduce(std::span<const CollectivePart> parts, ReduceOp op,
                                     CollectiveTag tag, Stream& stream) {
  silent_.all_reduce(parts, op, tag, stream);
}

void AblatedCommunicator::broadcast(std::span<const CollectivePart> parts, int root,
                                    CollectiveTag tag, Stream& stream) {
  silent_.broadcast(parts, root, tag, stream);
}

void AblatedCommunicator::barrier(CollectiveTag tag, Stream& stream) {
  silent_.barrier(tag, stream);
}

std::unique_ptr<Communicator> AblatedCommunicator::split(int color, int key) {
  return std::make_unique<AblatedCommunicator>(real_->split(color, key));
}

}  // namespace fsdp
