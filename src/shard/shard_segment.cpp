#include "shard/shard_segment.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace fsdp {

ShardUnit::Segment::Segment(const SegmentLayout& segment_layout, const Mesh& mesh,
                            Buffer main_shard)
    : layout(segment_layout),
      memory(std::make_shared<const MeshBuffer>(mesh, std::move(main_shard))),
      main(memory->buffer),
      main_tensor(
          torch_compat::wrap(main.data(), layout.slice_numel, DType::kFloat32, at::kCPU, memory)) {}

// Eight independent lanes, so that the multiplications overlap. main is a multiple of 64 bytes.
uint64_t ShardUnit::Segment::content() const {
  constexpr size_t kLanes = 8;
  std::array<uint64_t, kLanes> lanes{};
  const auto* data = static_cast<const std::byte*>(main.data());
  for (int64_t at = 0; at < main.bytes(); at += kLanes * sizeof(uint64_t)) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), data + at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i] = (std::rotl(lanes[i], 29) ^ words[i]) * 0x9E3779B97F4A7C15ULL;
    }
  }
  uint64_t digest = 0;
  for (const uint64_t lane : lanes) digest = (std::rotl(digest, 23) ^ lane) * 0x9E3779B97F4A7C15ULL;
  return digest;
}

}  // namespace fsdp
