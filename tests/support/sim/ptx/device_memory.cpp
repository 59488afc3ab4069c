#include "support/sim/ptx/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "support/sim/ptx/program.h"

namespace fsdp::testing::ptx {

void DeviceMemory::add(const void* begin, int64_t bytes, std::string name, bool defined) {
  auto allocation = std::make_unique<Allocation>();
  allocation->name = std::move(name);
  allocation->begin = reinterpret_cast<uint64_t>(begin);
  allocation->bytes = static_cast<uint64_t>(bytes);
  allocation->defined.assign(static_cast<size_t>(bytes), defined);
  allocation->cells.resize(static_cast<size_t>(bytes) / 2 + 1);
  allocations_[allocation->begin] = std::move(allocation);
}

void DeviceMemory::remove(const void* begin) {
  allocations_.erase(reinterpret_cast<uint64_t>(begin));
}

void DeviceMemory::define(const void* begin, int64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(begin);
  Allocation* allocation = find(address, bytes);
  if (allocation == nullptr) {
    throw Objection(fmt::format("{} bytes are written where no device memory is", bytes));
  }
  const auto first =
      allocation->defined.begin() + static_cast<int64_t>(address - allocation->begin);
  std::fill(first, first + bytes, true);
}

void DeviceMemory::require_defined(const void* begin, int64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(begin);
  const Allocation* allocation = find(address, bytes);
  if (allocation == nullptr) {
    throw Objection(fmt::format("{} bytes are read where no device memory is", bytes));
  }
  const auto first =
      allocation->defined.begin() + static_cast<int64_t>(address - allocation->begin);
  if (std::find(first, first + bytes, false) == first + bytes) return;
  throw Objection(
      fmt::format("a read of {}, of which nobody has written a byte", allocation->name));
}

Allocation* DeviceMemory::find(uint64_t address, int64_t bytes) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  Allocation* allocation = std::prev(after)->second.get();
  return address + static_cast<uint64_t>(bytes) <= allocation->end() ? allocation : nullptr;
}

}  // namespace fsdp::testing::ptx
