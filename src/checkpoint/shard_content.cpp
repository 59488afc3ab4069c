#include "checkpoint/shard_content.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/shard_writer.h"

namespace fsdp {
namespace {

constexpr size_t kStagedBytes = 1 << 20;
// The size of a piece that is checked for infinities and NaN and then written, while it is in the
// core's cache. If all pieces were checked before the first one is written, the second pass over
// the memory would take about a third of the time of a save to a fast disk.
constexpr size_t kCachedBytes = 256 << 10;

std::string begins_of(const std::vector<ShardTensor>& tensors) {
  std::vector<std::pair<std::string_view, int64_t>> all;
  for (const ShardTensor& each : tensors) all.emplace_back(each.part->name, each.range.begin);
  std::ranges::sort(all);
  std::vector<int64_t> sorted;
  for (const auto& [name, begin] : all) sorted.push_back(begin);
  return fmt::format("{}", fmt::join(sorted, ","));
}

// Calls `take` with the bytes of a tensor, in pieces if they must be copied from a device.
template <class Take>
void read(const ShardTensor& tensor, const Take& take) {
  const std::byte* data = tensor.data();
  auto bytes = static_cast<size_t>(tensor.bytes());
  if (!tensor.part->is_on_device) return take(std::span(data, bytes));
  std::vector<std::byte> staged(std::min(bytes, kStagedBytes));
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kStagedBytes);
    tensor.part->stream->read(staged.data(), data, static_cast<int64_t>(piece));
    take(std::span<const std::byte>(staged.data(), piece));
    data += piece;
    bytes -= piece;
  }
}

}  // namespace

std::string shard_name(int64_t rank, int64_t world_size) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", rank, world_size);
}

bool are_finite(std::span<const float> values) {
  // The exponent of an infinity or a NaN has all bits set. Integers are compared, so that the
  // compiler can vectorise the loop.
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
  }
  return found == 0;
}

ShardContent::ShardContent(const std::vector<StatePart>& parts) {
  for (const StatePart& part : parts) {
    const ElementRange share = share_of(part);
    if (share.numel == 0) continue;
    tensors.push_back({&part, share});
    specs.push_back({part.name, part.dtype, {share.numel}});
  }
  metadata[std::string(kBegins)] = begins_of(tensors);
}

int64_t ShardContent::bytes() const {
  int64_t bytes = 0;
  for (const ShardTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

bool write_shard(Disk& disk, const std::filesystem::path& path, const ShardContent& content) {
  ShardWriter writer(disk, path, content.specs, content.metadata);
  bool finite = true;
  for (const size_t index : writer.order()) {
    const ShardTensor& tensor = content.tensors[index];
    const bool check = tensor.must_be_finite();
    read(tensor, [&](std::span<const std::byte> bytes) {
      while (!bytes.empty()) {
        const auto piece = bytes.first(std::min(bytes.size(), kCachedBytes));
        finite &= !check || are_finite({reinterpret_cast<const float*>(piece.data()),
                                        piece.size() / sizeof(float)});
        writer.append(piece);
        bytes = bytes.subspan(piece.size());
      }
    });
  }
  writer.finish();
  return finite;
}

}  // namespace fsdp
