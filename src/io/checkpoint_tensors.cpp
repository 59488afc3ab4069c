#include "io/checkpoint_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {

CheckpointTensors::CheckpointTensors(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {}

void CheckpointTensors::Piece::read(
    const std::function<void(std::span<const std::byte> bytes)>& take) const {
  const std::span<const std::byte> part = shard.file().bytes(stored).subspan(
      static_cast<size_t>(from_bytes), static_cast<size_t>(bytes));
  take(part);
  shard.file().forget(part);
}

void CheckpointTensors::visit(int64_t index, int64_t begin, int64_t numel,
                              const std::function<void(const Piece& piece)>& visit) {
  if (numel == 0) return;
  const ManifestTensor& tensor = manifest_.tensors[static_cast<size_t>(index)];
  const int64_t item = bits_of(tensor.dtype) / 8;
  const int64_t end = begin + numel;
  // The intervals of a tensor have no gaps, so the last one that begins at `begin` or before has
  // the first element.
  auto each = std::ranges::upper_bound(
      manifest_.intervals, std::pair(index, begin), {},
      [](const ManifestInterval& interval) { return std::pair(interval.tensor, interval.begin); });
  for (--each; each != manifest_.intervals.end() && each->tensor == index && each->begin < end;
       ++each) {
    CheckedShard& shard = open(each->file);
    const StoredTensor* stored = shard.find(tensor.name);
    if (stored == nullptr || stored->dtype != tensor.dtype || stored->numel != each->numel) {
      throw IoError(
          ExitCode::kCorruptData,
          {.what = fmt::format("the file does not have elements [{}, {}) of {}", each->begin,
                               each->begin + each->numel, quoted_name(tensor.name)),
           .where = shard.path().string(),
           .hint = "use an earlier checkpoint"});
    }
    const int64_t first = std::max(begin, each->begin);
    visit({.shard = shard,
           .stored = *stored,
           .from_bytes = (first - each->begin) * item,
           .to_bytes = (first - begin) * item,
           .bytes = (std::min(end, each->begin + each->numel) - first) * item});
  }
}

void CheckpointTensors::read(int64_t index, int64_t begin, std::span<std::byte> to) {
  const int64_t item = bits_of(manifest_.tensors[static_cast<size_t>(index)].dtype) / 8;
  visit(index, begin, std::ssize(to) / item, [&](const Piece& piece) {
    piece.check();
    piece.read([&](std::span<const std::byte> bytes) {
      std::memcpy(to.data() + piece.to_bytes, bytes.data(), bytes.size());
    });
  });
}

CheckedShard& CheckpointTensors::open(int64_t file) {
  std::unique_ptr<CheckedShard>& shard = shards_[file];
  if (!shard) {
    const ManifestFile& of = manifest_.files[static_cast<size_t>(file)];
    shard = std::make_unique<CheckedShard>(folder_ / of.name, of.bytes, of.sum);
  }
  return *shard;
}

}  // namespace fsdp
