#include "io/support/whole_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/support/failing_disk.h"
#include "io/support/shard_files.h"
#include "io/support/small_manifest.h"
#include "io/weights_file.h"

namespace fsdp {
namespace {

void name_shards(CheckpointManifest& manifest, int64_t ranks) {
  manifest.world_size = ranks;
  manifest.files.clear();
  manifest.intervals.clear();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    manifest.files.push_back({fmt::format("shard-{:05}-of-{:05}.safetensors", rank, ranks)});
  }
  manifest.files.push_back({std::string(kIntervalsName)});
}

}  // namespace

void WholeCheckpoint::add(std::string name, StoredDType dtype, std::vector<int64_t> shape,
                          std::string values, std::vector<int64_t> strides) {
  if (strides.empty()) strides = row_major(shape);
  manifest.tensors.push_back({.name = std::move(name),
                              .dtype = dtype,
                              .shape = std::move(shape),
                              .strides = std::move(strides)});
  bytes.push_back(std::move(values));
}

void cut_evenly(CheckpointManifest& manifest, int64_t ranks) {
  name_shards(manifest, ranks);
  for (int64_t i = 0; i < std::ssize(manifest.tensors); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    const int64_t granules = (tensor.numel() + tensor.granule - 1) / tensor.granule;
    const int64_t share = (granules + ranks - 1) / ranks * tensor.granule;
    for (int64_t rank = 0; rank < ranks && rank * share < tensor.numel(); ++rank) {
      manifest.intervals.push_back(
          {i, rank, rank * share, std::min(share, tensor.numel() - rank * share)});
    }
  }
}

void give_to_first(CheckpointManifest& manifest, int64_t ranks) {
  name_shards(manifest, ranks);
  for (int64_t i = 0; i < std::ssize(manifest.tensors); ++i) {
    const int64_t numel = manifest.tensors[i].numel();
    if (numel > 0) manifest.intervals.push_back({i, 0, 0, numel});
  }
}

void write_checkpoint(const std::filesystem::path& folder, WholeCheckpoint checkpoint) {
  CheckpointManifest& manifest = checkpoint.manifest;
  std::filesystem::create_directory(folder);
  FailingDisk disk;
  for (int64_t i = 0; i + 1 < std::ssize(manifest.files); ++i) {
    SmallShard content;
    for (const ManifestInterval& each : manifest.intervals) {
      if (each.file != i) continue;
      const ManifestTensor& tensor = manifest.tensors[each.tensor];
      const int64_t item = bits_of(tensor.dtype) / 8;
      content.tensors.push_back({tensor.name, tensor.dtype, {each.numel}});
      content.bytes.push_back(checkpoint.bytes.at(each.tensor)
                                  .substr(static_cast<size_t>(each.begin * item),
                                          static_cast<size_t>(each.numel * item)));
    }
    ManifestFile& file = manifest.files[i];
    const BlockSums sums = write_shard(disk, folder / file.name, content);
    file.bytes = sums.file_bytes;
    file.sum = sum_of(sums);
  }
  set_intervals_entry(manifest);
  write_manifest(folder, manifest);
}

}  // namespace fsdp
