#include "kernels_simulated/support/device_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace fsdp::test {
namespace {

constexpr uintptr_t kBoundary = 256;
constexpr auto kBefore = std::byte{0x5a};

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + " failed");
}

}  // namespace

DeviceCopy::~DeviceCopy() {
  for (const auto& [begin, range] : ranges_) static_cast<void>(cudaFree(range.device));
}

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
  for (auto& [begin, range] : ranges_) {
    range.before = static_cast<int64_t>(begin % kBoundary);
    std::vector<std::byte> bytes(static_cast<size_t>(range.before), kBefore);
    const auto* from = reinterpret_cast<const std::byte*>(begin);
    bytes.insert(bytes.end(), from, from + (range.end - begin));
    void* device = nullptr;
    check(cudaMalloc(&device, bytes.size()), "cudaMalloc");
    range.device = static_cast<std::byte*>(device);
    check(cudaMemcpyAsync(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
  }
}

void DeviceCopy::fetch() {
  for (const auto& [begin, range] : ranges_) {
    std::vector<std::byte> bytes(static_cast<size_t>(range.before) + (range.end - begin));
    check(
        cudaMemcpyAsync(bytes.data(), range.device, bytes.size(), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const auto first = bytes.begin() + range.before;
    if (!std::all_of(bytes.begin(), first, [](std::byte each) { return each == kBefore; })) {
      throw std::runtime_error("bytes before a run were written");
    }
    auto* to = reinterpret_cast<std::byte*>(begin);
    // Only what changed: the host's may be constant.
    if (!std::equal(first, bytes.end(), to)) std::copy(first, bytes.end(), to);
  }
}

uintptr_t DeviceCopy::moved(uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return address;
  const auto& [begin, range] = *std::prev(after);
  if (address > range.end) return address;
  return reinterpret_cast<uintptr_t>(range.device) + static_cast<uintptr_t>(range.before) +
         (address - begin);
}

}  // namespace fsdp::test
