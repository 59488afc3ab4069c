#include "comm/local/local_communicator.h"

namespace fsdp {

Buffer LocalCommunicator::allocate(int64_t bytes) { return allocate_host(bytes); }

std::optional<uint64_t> LocalCommunicator::publish(const void* data, int64_t) const {
  return reinterpret_cast<uint64_t>(data);
}

std::byte* LocalCommunicator::resolve(int, uint64_t place) const {
  return reinterpret_cast<std::byte*>(place);
}

uint64_t LocalCommunicator::staging_place() {
  if (staging_.bytes() == 0) staging_ = allocate_host(kStagingBytes);
  return reinterpret_cast<uint64_t>(staging_.data());
}

std::vector<std::shared_ptr<const JobMember>> make_local_members(int world_size,
                                                                 const MeshOptions& options) {
  const auto memory =
      std::make_shared<Buffer>(allocate_host(ControlSegment::bytes_for(world_size)));
  const ControlSegment control(memory->data(), world_size);
  control.header().world_size = world_size;
  std::vector<std::shared_ptr<const JobMember>> members;
  for (int rank = 0; rank < world_size; ++rank) {
    control.status(rank).state.store(RankState::kPresent);
    members.push_back(
        std::make_shared<const JobMember>(JobMember::Parts{.memory = memory,
                                                           .control = control,
                                                           .rank = rank,
                                                           .timeout = options.timeout,
                                                           .on_slow_rank = options.on_slow_rank}));
  }
  return members;
}

}  // namespace fsdp
