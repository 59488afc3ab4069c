#include "simulator/cuda/nccl_registrations.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulator/cuda/nccl_world.h"

namespace fsdp::testing::sim {
namespace {

using nccl::Comm;
using nccl::Result;
using nccl::Window;

bool overlaps(const Window& window, const void* begin, int64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  return first < window.begin + window.bytes && window.begin < first + bytes;
}

bool uses(const Window& window, const NcclRequest& request, int size) {
  return overlaps(window, request.send, request.bytes_sent(size)) ||
         overlaps(window, request.recv, request.bytes_received(size));
}

}  // namespace

void* NcclRegistrations::allocate(int64_t bytes) {
  void* const memory = simulation_.memory().allocate(simulation_.host().device, bytes);
  if (memory != nullptr) memory_[memory] = bytes;
  return memory;
}

void NcclRegistrations::free(void* memory) {
  if (memory_.erase(memory) == 0) throw Misuse("memory that ncclMemAlloc has not made goes");
  for (const auto& window : windows_) {
    if (window->open && window->begin == memory) throw Misuse("memory goes that is registered");
  }
  simulation_.memory().free(memory);
}

void NcclRegistrations::begin(Comm& comm, void* memory, int64_t bytes, Window** place) {
  *place = nullptr;
  // NCCL versions before kWindowsFrom corrupt registered memory (nccl_library.h).
  if (version < nccl::kWindowsFrom) {
    throw Misuse(fmt::format("memory is registered with version {}, which spoils it", version));
  }
  const auto found = memory_.find(memory);
  if (found == memory_.end() || found->second < bytes) {
    throw Misuse("memory is registered that ncclMemAlloc has not made");
  }
  if (!comm.meeting || is_under_way(comm)) {
    throw Misuse("memory is registered with a communicator that is in progress");
  }
  const auto of_comm = [&](const auto& window) { return window->comm == &comm; };
  const auto number = std::ranges::count_if(windows_, of_comm);
  for (const auto& other : windows_) {
    if (other->open && of_comm(other) && overlaps(*other, memory, bytes)) {
      throw Misuse("memory is registered twice");
    }
    // Windows are symmetric: the n-th windows of all ranks must have the same size.
    if (other->comm->meeting == comm.meeting && other->number == number && other->bytes != bytes) {
      throw Misuse(fmt::format("window {} has {} bytes on one rank and {} on another", number,
                               bytes, other->bytes));
    }
  }
  windows_.push_back(std::make_unique<Window>(Window{.comm = &comm,
                                                     .number = static_cast<int>(number),
                                                     .begin = static_cast<std::byte*>(memory),
                                                     .bytes = bytes}));
  under_way_[&comm] = {windows_.back().get(), place};
  std::vector<int>& came = ranks_came_[comm.meeting.get()];
  if (std::ssize(came) <= number) came.resize(static_cast<size_t>(number) + 1);
  ++came[static_cast<size_t>(number)];
}

Result NcclRegistrations::ask(const Comm& comm) {
  const auto& [window, place] = under_way_.at(&comm);
  const int came = ranks_came_[comm.meeting.get()][static_cast<size_t>(window->number)];
  if (comm.stays || came < comm.meeting->size) return Result::kInProgress;
  *place = window;
  under_way_.erase(&comm);
  return Result::kSuccess;
}

void NcclRegistrations::end(const Comm& comm, Window* window) {
  if (window == nullptr || window->comm != &comm || !window->open) {
    throw Misuse("a window is given back that is not the communicator's");
  }
  require_unused(*window);
  window->open = false;
}

void NcclRegistrations::require_unused(const Window& window) const {
  const Comm& comm = *window.comm;
  for (const auto& collective : comm.meeting->collectives) {
    const auto& post = collective->posts[static_cast<size_t>(comm.rank)];
    if (!post || (post->done && post->done->reached)) continue;
    for (const NcclRequest& request : post->requests) {
      if (uses(window, request, comm.meeting->size)) {
        throw Misuse("a window is given back while a collective uses it");
      }
    }
  }
}

std::string NcclRegistrations::place_of(const Comm& comm, const NcclRequest& request) {
  std::string place;
  bool sends_from_one = false;
  for (const auto& window : windows_) {
    // A window whose memory was freed is skipped: another allocation may have its address now.
    if (window->comm != &comm || !memory_.contains(window->begin)) continue;
    if (!window->open && uses(*window, request, comm.meeting->size)) {
      throw Misuse("a collective on memory whose window was given back");
    }
    if (!window->open) continue;
    sends_from_one |= overlaps(*window, request.send, 1);
    const auto* const recv = static_cast<const std::byte*>(request.recv);
    if (!overlaps(*window, recv, 1)) continue;
    place = fmt::format(" at {} of window {}", recv - window->begin, window->number);
  }
  if (!place.empty() && !sends_from_one) ++half_registered;
  return place;
}

void NcclRegistrations::require_none(const Comm& comm) const {
  for (const auto& window : windows_) {
    if (window->comm == &comm && window->open) {
      throw Misuse("a communicator ends whose windows were not given back");
    }
  }
}

void NcclRegistrations::forget(const Comm& comm) {
  for (const auto& window : windows_) {
    if (window->comm == &comm) window->open = false;
  }
  under_way_.erase(&comm);
}

}  // namespace fsdp::testing::sim
