#include "simulator/cuda/gpu_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "simulator/guarded_memory.h"

namespace fsdp::testing::sim {
namespace {

constexpr int64_t kGap = 256;
constexpr int kFill = 0xcb;

template <class Blocks>
auto* block_at(Blocks& blocks, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto after = blocks.upper_bound(at);
  if (after == blocks.begin()) return static_cast<decltype(&after->second)>(nullptr);
  auto* block = &std::prev(after)->second;
  const auto begin = std::prev(after)->first;
  return at - begin < static_cast<uintptr_t>(block->bytes) ? block : nullptr;
}

}  // namespace

GpuMemory::GpuMemory(int devices, int64_t bytes_each)
    : bytes_each_(bytes_each),
      left_(static_cast<size_t>(devices), bytes_each),
      seen_(static_cast<size_t>(devices)) {}

void* GpuMemory::allocate(int device, int64_t bytes) {
  int64_t& left = left_[static_cast<size_t>(device)];
  if (bytes > left) return nullptr;
  Buffer memory;
  try {
    memory = GuardedMemory::instance().allocate(bytes + kGap);
  } catch (const std::runtime_error&) {
    // All simulated GPUs share the process's guarded memory. If it is exhausted, the device reports
    // out of memory.
    return nullptr;
  }
  void* const begin = memory.data();
  {
    const AsDeviceWork work;
    std::memset(begin, kFill, static_cast<size_t>(bytes));
  }
  left -= bytes;
  const std::string name = fmt::format("allocation {} of {} bytes", ++made_, bytes);
  of(device).add(begin, bytes, name, false);
  blocks_[reinterpret_cast<uintptr_t>(begin)] = {
      .device = device, .memory = std::move(memory), .bytes = bytes, .taken = bytes, .name = name};
  return begin;
}

// Pinned bytes count as defined from the start, because the simulation does not see the host's
// writes.
void* GpuMemory::allocate_pinned(int64_t bytes) {
  Buffer memory = allocate_host(bytes + kGap);
  void* const begin = memory.data();
  const std::string name = fmt::format("pinned allocation {} of {} bytes", ++made_, bytes);
  for (ptx::DeviceMemory& device : seen_) device.add(begin, bytes, name, true);
  pinned_[reinterpret_cast<uintptr_t>(begin)] = {
      .memory = std::move(memory), .bytes = bytes, .name = name};
  return begin;
}

void GpuMemory::add_pinned(void* begin, int64_t bytes, const std::string& name) {
  for (ptx::DeviceMemory& device : seen_) device.add(begin, bytes, name, true);
  pinned_[reinterpret_cast<uintptr_t>(begin)] = {.memory = Buffer(begin, bytes, {}),
                                                 .bytes = bytes};
}

void* GpuMemory::allocate_sparse(int device, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  Buffer memory(begin, bytes, [size](void* gone) { munmap(gone, size); });
  of(device).add(begin, bytes, fmt::format("sparse memory of {} bytes", bytes), true);
  blocks_[reinterpret_cast<uintptr_t>(begin)] = {
      .device = device, .memory = std::move(memory), .bytes = bytes};
  return begin;
}

bool GpuMemory::free(void* begin) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(begin));
  // The block stays in the map, because its addresses must never be reused.
  if (found == blocks_.end() || found->second.freed) return false;
  found->second.freed = true;
  left_[static_cast<size_t>(found->second.device)] += found->second.taken;
  of(found->second.device).remove(begin);
  return true;
}

bool GpuMemory::free_pinned(void* begin) {
  const auto found = pinned_.find(reinterpret_cast<uintptr_t>(begin));
  if (found == pinned_.end() || found->second.freed) return false;
  found->second.freed = true;
  for (ptx::DeviceMemory& device : seen_) device.remove(begin);
  return true;
}

std::vector<std::string> GpuMemory::left() const {
  std::vector<std::string> left;
  for (const auto* blocks : {&blocks_, &pinned_}) {
    for (const auto& [begin, block] : *blocks) {
      if (!block.freed && !block.name.empty()) left.push_back(block.name);
    }
  }
  return left;
}

void GpuMemory::rename(const void* begin, const std::string& name) {
  const int device = device_of(begin);
  if (device >= 0) return of(device).rename(begin, name);
  for (ptx::DeviceMemory& each : seen_) each.rename(begin, name);
}

int GpuMemory::device_of(const void* begin) const {
  const Block* block = block_at(blocks_, begin);
  return block == nullptr || block->freed ? -1 : block->device;
}

Place GpuMemory::place_of(const void* begin) const {
  if (block_at(blocks_, begin) != nullptr) return Place::kDevice;
  return block_at(pinned_, begin) != nullptr ? Place::kPinned : Place::kPageable;
}

}  // namespace fsdp::testing::sim
