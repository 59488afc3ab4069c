#include "comm/shm_communicator.h"

namespace fsdp {

Buffer ShmCommunicator::allocate(int64_t bytes) { return heap_->allocate(bytes); }

std::optional<uint64_t> ShmCommunicator::publish(const void* data, int64_t bytes) const {
  return heap_->offset_of(data, bytes);
}

std::byte* ShmCommunicator::resolve(int rank, uint64_t place) const {
  return memory_->heap(rank).data() + place;
}

}  // namespace fsdp
