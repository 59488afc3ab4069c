#include "kernels_simulated/support/device_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace fsdp::test {
namespace {

constexpr uintptr_t kBoundary = 256;

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + " failed");
}

}  // namespace

DeviceCopy::~DeviceCopy() { static_cast<void>(cudaFree(device_)); }

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
  for (auto& [begin, range] : ranges_) {
    // Two boundaries on, so that ranges never touch.
    const uintptr_t boundary = (bytes_.size() / kBoundary + 2) * kBoundary;
    range.offset = boundary + begin % kBoundary;
    bytes_.resize(range.offset + (range.end - begin), std::byte{0x5a});
    std::memcpy(bytes_.data() + range.offset, reinterpret_cast<const void*>(begin),
                range.end - begin);
  }
  void* device = nullptr;
  check(cudaMalloc(&device, bytes_.size()), "cudaMalloc");
  device_ = static_cast<std::byte*>(device);
  check(cudaMemcpyAsync(device, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
}

void DeviceCopy::fetch() {
  if (ranges_.empty()) return;
  check(cudaMemcpyAsync(bytes_.data(), device_, bytes_.size(), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  for (const auto& [begin, range] : ranges_) {
    const std::byte* from = bytes_.data() + range.offset;
    auto* to = reinterpret_cast<std::byte*>(begin);
    const size_t size = range.end - begin;
    // Only what changed: the host's may be constant.
    if (std::memcmp(to, from, size) != 0) std::memcpy(to, from, size);
  }
}

void DeviceCopy::require_inside(const std::vector<testing::sim::LaunchRecord>& launches) const {
  std::map<uint64_t, uint64_t> inside;  // begins and ends on the device
  for (const auto& [begin, range] : ranges_) {
    const uint64_t first = reinterpret_cast<uintptr_t>(device_) + range.offset;
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
  return reinterpret_cast<uintptr_t>(device_) + range.offset + (address - begin);
}

}  // namespace fsdp::test
