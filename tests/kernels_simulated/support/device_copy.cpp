#include "kernels_simulated/support/device_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace fsdp::test {
namespace {

constexpr uintptr_t kBoundary = 256;
constexpr std::byte kGap{0x5a};

}  // namespace

void DeviceCopy::add(const void* address, int64_t bytes) {
  if (address == nullptr || bytes == 0) return;
  auto begin = reinterpret_cast<uintptr_t>(address);
  uintptr_t end = begin + static_cast<uintptr_t>(bytes);
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second.end > begin) --next;
  while (next != ranges_.end() && next->first < end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second.end);
    next = ranges_.erase(next);
  }
  ranges_[begin] = {.end = end};
}

void DeviceCopy::bring() {
  if (ranges_.empty()) return;
  uintptr_t end = 0;
  for (auto& [begin, range] : ranges_) {
    // The gap is at least one boundary long, so that ranges are never adjacent.
    range.offset = (end / kBoundary + 2) * kBoundary + begin % kBoundary;
    end = range.offset + (range.end - begin);
  }
  bytes_ = static_cast<int64_t>((end / kBoundary + 2) * kBoundary);
  host_ = stream_.device().allocate(bytes_, MemoryKind::kPinned);
  device_ = stream_.device().allocate(bytes_, MemoryKind::kDevice);
  std::memset(host_.data(), static_cast<int>(kGap), static_cast<size_t>(bytes_));
  for (const auto& [begin, range] : ranges_) {
    std::memcpy(host_.at(static_cast<int64_t>(range.offset)), reinterpret_cast<const void*>(begin),
                range.end - begin);
  }
  stream_.copy(device_.data(), host_.data(), bytes_);
}

void DeviceCopy::fetch() {
  if (ranges_.empty()) return;
  stream_.synchronize();
  stream_.read(host_.data(), device_.data(), bytes_);
  require_gaps_untouched();
  for (const auto& [begin, range] : ranges_) {
    const std::byte* from = host_.at(static_cast<int64_t>(range.offset));
    auto* to = reinterpret_cast<std::byte*>(begin);
    const size_t size = range.end - begin;
    // Only changed bytes are written, because unchanged bytes may be constant memory of the host.
    if (std::memcmp(to, from, size) != 0) std::memcpy(to, from, size);
  }
}

void DeviceCopy::require_gaps_untouched() const {
  const std::byte* gap = host_.at(0);
  const auto require = [&gap](const std::byte* end) {
    if (std::all_of(gap, end, [](std::byte each) { return each == kGap; })) return;
    throw std::runtime_error("the GPU wrote where the call names nothing");
  };
  for (const auto& [begin, range] : ranges_) {
    require(host_.at(static_cast<int64_t>(range.offset)));
    gap = host_.at(static_cast<int64_t>(range.offset + (range.end - begin)));
  }
  require(host_.at(bytes_));
}

void DeviceCopy::require_inside(const std::vector<testing::sim::LaunchRecord>& launches) const {
  std::map<uint64_t, uint64_t> inside;  // start and end addresses on the device
  for (const auto& [begin, range] : ranges_) {
    const uint64_t first = reinterpret_cast<uintptr_t>(device_.data()) + range.offset;
    inside[first] = first + (range.end - begin);
  }
  for (const testing::sim::LaunchRecord& launch : launches) {
    for (const auto* touched : {&launch.report.read, &launch.report.written}) {
      for (const testing::ptx::ByteRange& bytes : *touched) {
        const auto after = inside.upper_bound(bytes.begin);
        if (after != inside.begin() && bytes.end <= std::prev(after)->second) continue;
        throw std::runtime_error(launch.kernel + " touched what the call does not name");
      }
    }
  }
}

uintptr_t DeviceCopy::moved(uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return address;
  const auto& [begin, range] = *std::prev(after);
  if (address >= range.end) return address;
  return reinterpret_cast<uintptr_t>(device_.data()) + range.offset + (address - begin);
}

}  // namespace fsdp::test
