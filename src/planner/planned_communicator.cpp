#include "planner/planned_communicator.h"

#include "comm/ranks_view.h"
#include "comm/shm/shared_heap.h"

namespace fsdp {

RanksView PlannedCommunicator::map_ranks(const void* /*mine*/, int64_t bytes) {
  if (!group_.maps_ranks || !has_whole_pages(bytes)) return {};
  return RanksView(device_.allocate(bytes * group_.size, MemoryKind::kDevice));
}

std::unique_ptr<Communicator> PlannedCommunicator::split(int /*color*/, int /*key*/) {
  return std::make_unique<PlannedCommunicator>(device_, group_);
}

std::unique_ptr<Communicator> PlannedCommunicator::with_windows(bool by_copy_engines) {
  if (!group_.by_nccl) return Communicator::with_windows(by_copy_engines);
  return std::make_unique<PlannedCommunicator>(device_, group_);
}

}  // namespace fsdp
