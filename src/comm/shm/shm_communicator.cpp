#include "comm/shm/shm_communicator.h"

#include <algorithm>
#include <vector>

#include "comm/ranks_view.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

constexpr int64_t kCannotBeShown = -1;

}  // namespace

Buffer ShmCommunicator::allocate(int64_t bytes) { return heap_->allocate(bytes); }

RanksView ShmCommunicator::map_ranks(const void* mine, int64_t bytes) {
  // `bytes` is equal on all ranks, so either all ranks return here or none does.
  if (!has_whole_pages(bytes)) return {};
  Stream& stream = cpu_device().compute_stream();
  const auto place = publish(mine, bytes);
  const bool whole_pages = place && *place % kPageBytes == 0;
  // A rank whose memory cannot be mapped joins the gather as well, so that all ranks make the same
  // decision.
  const int64_t own = whole_pages ? static_cast<int64_t>(*place) : kCannotBeShown;
  std::vector<int64_t> places(size());
  const CollectivePart part{&own, places.data(), 1, DType::kInt64};
  all_gather({&part, 1}, {0, "map ranks"}, stream);
  if (std::find(places.begin(), places.end(), kCannotBeShown) != places.end()) return {};
  std::vector<FilePages> pieces;
  for (int peer = 0; peer < size(); ++peer) {
    // The view needs its own mappings, because they must be read-only and side by side.
    pieces.push_back({memory_->heap_file(job_rank(peer)), places[peer], bytes});
  }
  return {memory_, pieces};
}

std::unique_ptr<Communicator> ShmCommunicator::make_group(std::shared_ptr<const JobMember> member,
                                                          RankGroup group) const {
  return std::make_unique<ShmCommunicator>(std::move(member), std::move(group), memory_, heap_);
}

std::optional<uint64_t> ShmCommunicator::publish(const void* data, int64_t bytes) const {
  return heap_->offset_of(data, bytes);
}

std::byte* ShmCommunicator::resolve(int rank, uint64_t place) const {
  // Each process maps a heap at a different address, so a place is an offset.
  return memory_->heap(rank).data() + place;
}

}  // namespace fsdp
