#include "checkpoint/publication.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <map>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>

#include "checkpoint/shard_content.h"
#include "checkpoint/training_conditions.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/block_sums.h"
#include "io/file_failure.h"
#include "io/mapped_file.h"
#include "io/new_file.h"

namespace fsdp {
namespace {

// Returns the time in UTC, "2026-11-26T23:20:00Z".
std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), size};
}

// Adds the shards of all ranks, and the elements that they contain, to the manifest.
void add_shards(CheckpointManifest& manifest, const std::filesystem::path& folder,
                const std::string& host) {
  std::map<std::string_view, int64_t> index;
  for (int64_t i = 0; i < std::ssize(manifest.tensors); ++i) index[manifest.tensors[i].name] = i;
  for (int64_t rank = 0; rank < manifest.world_size; ++rank) {
    const std::string name = shard_name(rank, manifest.world_size);
    if (!std::filesystem::exists(folder / name)) {
      throw IoError(
          ExitCode::kConfiguration,
          {.what = fmt::format("rank {} wrote its part of the checkpoint elsewhere", rank),
           .where = folder.string(),
           .cause = fmt::format("{} is not in this folder on host {}", name, host),
           .hint = "use a folder that all hosts share"});
    }
    const SafetensorsFile shard(folder / name);
    const std::filesystem::path sum = sums_path(folder / name);
    const MappedFile sums(sum);
    manifest.files.push_back(
        {name, BlockSums::parse(sums.bytes(), sum).file_bytes, hash_of(sums.bytes())});
    std::vector<const StoredTensor*> tensors;
    for (const StoredTensor& tensor : shard.tensors()) tensors.push_back(&tensor);
    std::ranges::sort(tensors, {}, [](const StoredTensor* tensor) { return tensor->name; });
    const auto finite = shard.metadata().find(std::string(kFinite));
    if (finite != shard.metadata().end() && finite->second != "1") manifest.finite = false;
    std::string_view begins = shard.metadata().at(std::string(kBegins));
    for (const StoredTensor* tensor : tensors) {
      int64_t begin = 0;
      const auto [end, error] =
          std::from_chars(begins.data(), begins.data() + begins.size(), begin);
      begins.remove_prefix(std::min<size_t>(end - begins.data() + 1, begins.size()));
      manifest.intervals.push_back({index.at(tensor->name), rank, begin, tensor->numel});
    }
  }
  std::ranges::sort(manifest.intervals, {}, [](const ManifestInterval& each) {
    return std::pair(each.tensor, each.begin);
  });
}

}  // namespace

std::filesystem::path SaveTarget::parent() const {
  return folder.has_parent_path() ? folder.parent_path() : std::filesystem::path(".");
}

std::string temporary_prefix(const std::filesystem::path& folder) {
  return fmt::format(".{}.tmp.", folder.filename().string());
}

std::filesystem::path next_temporary(TrainingState::Parts& state,
                                     const std::filesystem::path& folder) {
  return folder.parent_path() /
         fmt::format("{}{}-{}", temporary_prefix(folder), state.nonce, ++state.attempts);
}

void require_free_name(const SaveTarget& target) {
  std::error_code ignored;
  if (target.replaces || !std::filesystem::exists(target.folder, ignored)) return;
  throw IoError(ExitCode::kCannotCreate, {.what = "the checkpoint's folder exists already",
                                          .where = target.folder.string(),
                                          .hint = "choose a folder that does not exist"});
}

void make_temporary(Disk& disk, const std::filesystem::path& folder) {
  if (disk.mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    cannot_create(folder, errno, "cannot create the checkpoint's folder");
  }
}

void require_space(const std::filesystem::path& folder, int64_t bytes) {
  const std::optional<int64_t> available = available_bytes(folder);
  if (!available || *available >= bytes) return;
  throw IoError(
      ExitCode::kIoError,
      {.what = fmt::format("a rank's part of the checkpoint needs {}, but the disk has {} free",
                           format_bytes(bytes), format_bytes(*available)),
       .where = folder.string(),
       .hint = "free some space, or choose another disk"});
}

CheckpointManifest begin_manifest(const TrainingState::Parts& state,
                                  const std::vector<StatePart>& parts,
                                  const SaveStateOptions& options) {
  CheckpointManifest manifest{
      .run = state.lineage.run,
      .sequence = state.lineage.sequence + 1,
      .step = options.step,
      // A manifest's resumed_from must not exceed its step. This would happen if a program that
      // does not count its steps, and so saves step 0, had resumed from a later step.
      .resumed_from = state.lineage.resumed_from <= options.step ? state.lineage.resumed_from : -1,
      .time = now(),
      .world_size = state.mesh().world_size(),
      .conditions = training_conditions(state.engine)};
  for (const StatePart& part : parts) {
    manifest.tensors.push_back(
        {part.name, part.other_names, part.dtype, part.shape, part.strides, part.granule});
  }
  for (const auto& object : state.objects) {
    if (options.weights_only && object->order != RestoreOrder::kEngine) continue;
    manifest.objects.push_back({object->name, object->kind(), object->values()});
  }
  return manifest;
}

bool publish(Disk& disk, CheckpointManifest manifest, const std::filesystem::path& temporary,
             const SaveTarget& target, const std::string& host) {
  add_shards(manifest, temporary, host);
  const std::vector<std::byte> intervals = intervals_file(manifest.intervals);
  write_new_file(disk, temporary / kIntervalsName, intervals);
  manifest.files.push_back(
      {std::string(kIntervalsName), std::ssize(intervals), hash_of(intervals)});
  const std::string text = manifest_text(manifest);
  write_new_file(disk, temporary / kManifestName, std::as_bytes(std::span(text)));
  // The names of the files must be on disk before the folder gets its final name.
  sync_names(disk, temporary);
  // `exchange` swaps the names of both folders in one system call, so at any time one of the two
  // checkpoints has the final name.
  const auto give_name = [&] {
    return target.replaces ? disk.exchange(temporary.c_str(), target.folder.c_str())
                           : disk.rename(temporary.c_str(), target.folder.c_str());
  };
  if (give_name() != 0) {
    cannot_create(target.folder, errno, "cannot give the checkpoint its name");
  }
  try {
    sync_names(disk, target.parent());
  } catch (...) {
    // A save that reports a failure must not leave a checkpoint. The caller removes `temporary`.
    if (target.replaces) {
      give_name();
    } else {
      disk.rename(target.folder.c_str(), temporary.c_str());
    }
    throw;
  }
  if (target.replaces) remove_folder(disk, temporary);
  return manifest.finite;
}

int64_t checkpoint_bytes(const std::vector<StatePart>& parts) {
  int64_t bytes = 0;
  for (const StatePart& part : parts) {
    const int64_t numel =
        std::accumulate(part.shape.begin(), part.shape.end(), int64_t{1}, std::multiplies<>());
    bytes += numel * bits_of(part.dtype) / 8;
  }
  return bytes;
}

}  // namespace fsdp
