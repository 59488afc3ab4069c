#include "comm/local/local_communicator.h"

namespace fsdp {

Buffer LocalCommunicator::allocate(int64_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Communicator> LocalCommunicator::make_group(std::shared_ptr<const JobMember> member,
                                                            RankGroup group) const {
  return std::make_unique<LocalCommunicator>(std::move(member), std::move(group));
}

std::optional<uint64_t> LocalCommunicator::publish(const void* data, int64_t) const {
  // All threads use the same addresses, so the place is the address, and any memory can be read in
  // place.
  return reinterpret_cast<uint64_t>(data);
}

std::byte* LocalCommunicator::resolve(int, uint64_t place) const {
  return reinterpret_cast<std::byte*>(place);
}

uint64_t LocalCommunicator::staging_place() {
  // Only runs are staged, so most communicators never allocate this memory.
  if (staging_.bytes() == 0) staging_ = allocate_host(kStagingBytes);
  return reinterpret_cast<uint64_t>(staging_.data());
}

}  // namespace fsdp
