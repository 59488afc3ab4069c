#include "comm/shm_communicator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

constexpr int64_t kCannotBeShown = -1;

// Addresses for the ranks' pieces, which nothing else takes meanwhile.
Buffer reserve_addresses(int64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw DeviceError({.what = fmt::format("{} of addresses were refused", format_bytes(bytes)),
                       .where = "a view of all ranks' shards",
                       .cause = std::strerror(errno),
                       .hint = "check the limit of address space (ulimit -v)"});
  }
  return {at, bytes, [bytes](void* data) { munmap(data, bytes); }};
}

// A second view of pages that are mapped already, read-only, so that a stray write cannot reach
// another rank's shard.
void show_again(std::byte* pages, int64_t bytes, std::byte* at) {
  // An old size of 0 asks for one more mapping of the same shared pages: mremap(2).
  if (mremap(pages, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED &&
      mprotect(at, bytes, PROT_READ) == 0) {
    return;
  }
  throw DeviceError({.what = fmt::format("mapping {} again was refused", format_bytes(bytes)),
                     .where = "a view of all ranks' shards",
                     .cause = std::strerror(errno),
                     .hint = "raise vm.max_map_count, or set Options::map_shards = false"});
}

}  // namespace

Buffer ShmCommunicator::allocate(int64_t bytes) { return heap_->allocate(bytes); }

Buffer ShmCommunicator::map_ranks(const void* mine, int64_t bytes) {
  if (bytes < kLargeBlockBytes || bytes % kPageBytes != 0) return {};
  const auto stream = make_cpu_stream(CpuStreams::kInline, "map");
  const auto place = publish(mine, bytes);
  const bool whole_pages = place && *place % kPageBytes == 0;
  const int64_t own = whole_pages ? static_cast<int64_t>(*place) : kCannotBeShown;
  std::vector<int64_t> places(size());
  const CollectivePart part{&own, places.data(), 1, DType::kInt64};
  all_gather({&part, 1}, {0, "map ranks"}, *stream);
  if (std::find(places.begin(), places.end(), kCannotBeShown) != places.end()) return {};
  Buffer view = reserve_addresses(size() * bytes);
  for (int peer = 0; peer < size(); ++peer) {
    show_again(resolve(peer, static_cast<uint64_t>(places[peer])), bytes, view.at(peer * bytes));
  }
  return view;
}

std::optional<uint64_t> ShmCommunicator::publish(const void* data, int64_t bytes) const {
  return heap_->offset_of(data, bytes);
}

std::byte* ShmCommunicator::resolve(int rank, uint64_t place) const {
  return memory_->heap(rank).data() + place;
}

}  // namespace fsdp
