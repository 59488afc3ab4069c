#include "planner/planned_communicator.h"

#include "comm/ranks_view.h"
#include "comm/shm/shared_heap.h"
#include "comm/wire/wire_time.h"

namespace fsdp {

void PlannedCommunicator::count(Operation operation, std::span<const CollectivePart> parts) const {
  if (group_.sent_bytes != nullptr) *group_.sent_bytes += ring_bytes(operation, parts, group_.size);
}

RanksView PlannedCommunicator::map_ranks(const void* /*mine*/, int64_t bytes) {
  if (!group_.maps_ranks || !has_whole_pages(bytes)) return {};
  return RanksView(device_.allocate(bytes * group_.size, MemoryKind::kDevice));
}

void PlannedCommunicator::all_gather(std::span<const CollectivePart> parts, CollectiveTag /*tag*/,
                                     Stream& /*stream*/) {
  count(Operation::kAllGather, parts);
}

void PlannedCommunicator::reduce_scatter(std::span<const CollectivePart> parts, ReduceOp /*op*/,
                                         CollectiveTag /*tag*/, Stream& /*stream*/) {
  count(Operation::kReduceScatter, parts);
}

void PlannedCommunicator::all_reduce(std::span<const CollectivePart> parts, ReduceOp /*op*/,
                                     CollectiveTag /*tag*/, Stream& /*stream*/) {
  count(Operation::kAllReduce, parts);
}

void PlannedCommunicator::broadcast(std::span<const CollectivePart> parts, int /*root*/,
                                    CollectiveTag /*tag*/, Stream& /*stream*/) {
  count(Operation::kBroadcast, parts);
}

std::unique_ptr<Communicator> PlannedCommunicator::split(int /*color*/, int /*key*/) {
  return std::make_unique<PlannedCommunicator>(device_, group_);
}

}  // namespace fsdp
