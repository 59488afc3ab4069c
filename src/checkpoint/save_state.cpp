#include "checkpoint/save_state.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>

#include "checkpoint/shard_cut.h"
#include "checkpoint/training_conditions.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_failure.h"
#include "io/mapped_file.h"
#include "io/new_file.h"
#include "io/shard_writer.h"

namespace fsdp {
namespace {

constexpr std::string_view kWritingCheckpoint = "writing the checkpoint";
// The metadata of a shard file that contain the index of each tensor's first element: "0,512,…".
constexpr std::string_view kBegins = "begins";
constexpr size_t kStagedBytes = 1 << 20;
// The size of a piece that is checked for infinities and NaN and then written, while it is in the
// core's cache. If all pieces were checked before the first one is written, the second pass over
// the memory would take about a third of the time of a save to a fast disk.
constexpr size_t kCachedBytes = 256 << 10;

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

// A writer of one rank's shard file.
class ShardSave {
 public:
  ShardSave(const TrainingState::Parts& state, const std::vector<StatePart>& parts)
      : state_(state), parts_(parts) {
    for (const StatePart& part : parts) {
      const ElementRange share = share_of(part);
      if (share.numel == 0) continue;
      shares_.push_back({&part, share});
      specs_.push_back({part.name, part.dtype, {share.numel}});
    }
  }

  // Returns the bytes of the tensors that this rank writes.
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Share& share : shares_) bytes += share.range.numel * bits_of(share.part->dtype) / 8;
    return bytes;
  }

  // Returns true if all elements that must be finite are.
  bool write(Disk& disk, const std::filesystem::path& folder) {
    const Mesh& mesh = state_.mesh();
    ShardWriter writer(disk, folder / shard_name(mesh.rank(), mesh.world_size()), specs_,
                       {{std::string(kBegins), begins()}});
    bool finite = true;
    for (const size_t index : writer.order()) {
      const StatePart& part = *shares_[index].part;
      const bool check = part.must_be_finite && part.dtype == StoredDType::kF32;
      read(shares_[index], [&](std::span<const std::byte> bytes) {
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

 private:
  struct Share {
    const StatePart* part;
    ElementRange range;
  };

  // Returns the index of the first element that this rank writes of each tensor, in the order of
  // the tensors' names in the shard file.
  std::string begins() const {
    std::vector<std::pair<std::string_view, int64_t>> all;
    for (const Share& share : shares_) all.emplace_back(share.part->name, share.range.begin);
    std::ranges::sort(all);
    std::vector<int64_t> sorted;
    for (const auto& [name, begin] : all) sorted.push_back(begin);
    return fmt::format("{}", fmt::join(sorted, ","));
  }

  // Calls `take` with the bytes of a share, in pieces if they must be copied from a device.
  template <class Take>
  void read(const Share& share, const Take& take) {
    const StatePart& part = *share.part;
    const int64_t item = bits_of(part.dtype) / 8;
    const std::byte* data = part.data + (share.range.begin - part.begin) * item;
    auto bytes = static_cast<size_t>(share.range.numel * item);
    if (!part.is_on_device) return take(std::span(data, bytes));
    staged_.resize(kStagedBytes);
    while (bytes > 0) {
      const size_t piece = std::min(bytes, kStagedBytes);
      part.stream->read(staged_.data(), data, static_cast<int64_t>(piece));
      take(std::span<const std::byte>(staged_.data(), piece));
      data += piece;
      bytes -= piece;
    }
  }

  const TrainingState::Parts& state_;
  const std::vector<StatePart>& parts_;
  std::vector<Share> shares_;
  std::vector<TensorSpec> specs_;
  std::vector<std::byte> staged_;
};

// Makes the folder that all ranks write into. Every rank calls this function, and the first call
// makes the folder.
void make_folder(Disk& disk, const std::filesystem::path& folder) {
  if (disk.mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    cannot_create(folder, errno, "cannot create the checkpoint's folder");
  }
}

// Returns the time in UTC, "2026-11-26T23:20:00Z".
std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), size};
}

// Makes the manifest, which lists the files and elements that the ranks have written. Called on
// rank 0.
CheckpointManifest manifest_of(const TrainingState::Parts& state,
                               const std::vector<StatePart>& parts,
                               const std::filesystem::path& folder, const SaveStateOptions& options,
                               bool finite) {
  const Mesh& mesh = state.mesh();
  CheckpointManifest manifest{
      .run = state.lineage.run,
      .sequence = state.lineage.sequence + 1,
      .step = options.step,
      // A manifest's resumed_from must not exceed its step. This would happen if a program that
      // does not count its steps, and so saves step 0, had resumed from a later step.
      .resumed_from = state.lineage.resumed_from <= options.step ? state.lineage.resumed_from : -1,
      .time = now(),
      .finite = finite,
      .world_size = mesh.world_size(),
      .conditions = training_conditions(state.engine)};
  std::map<std::string, int64_t, std::less<>> index;
  for (const StatePart& part : parts) {
    index[part.name] = std::ssize(manifest.tensors);
    manifest.tensors.push_back(
        {part.name, part.other_names, part.dtype, part.shape, part.strides, part.granule});
  }
  for (const auto& object : state.objects) {
    if (options.weights_only && object->order != RestoreOrder::kEngine) continue;
    manifest.objects.push_back({object->name, object->kind(), object->values()});
  }
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const std::string name = shard_name(rank, mesh.world_size());
    if (!std::filesystem::exists(folder / name)) {
      throw IoError(
          ExitCode::kConfiguration,
          {.what = fmt::format("rank {} wrote its part of the checkpoint elsewhere", rank),
           .where = folder.string(),
           .cause = fmt::format("{} is not in this folder on host {}", name, mesh.host()),
           .hint = "use a folder that all hosts share"});
    }
    const SafetensorsFile shard(folder / name);
    const std::filesystem::path sum =
        std::filesystem::path(folder / name).replace_extension(".sum");
    const MappedFile sums(sum);
    manifest.files.push_back(
        {name, BlockSums::parse(sums.bytes(), sum).file_bytes, hash_of(sums.bytes())});
    std::vector<const StoredTensor*> tensors;
    for (const StoredTensor& tensor : shard.tensors()) tensors.push_back(&tensor);
    std::ranges::sort(tensors, {}, [](const StoredTensor* tensor) { return tensor->name; });
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
  return manifest;
}

// Writes the manifest, and gives the folder its final name. Called on rank 0, after all ranks have
// written.
void publish(Disk& disk, CheckpointManifest manifest, const std::filesystem::path& temporary,
             const SaveTarget& target) {
  const std::vector<std::byte> intervals = intervals_file(manifest.intervals);
  write_new_file(disk, temporary / kIntervalsName, intervals);
  manifest.files.push_back(
      {std::string(kIntervalsName), std::ssize(intervals), hash_of(intervals)});
  const std::string text = manifest_text(manifest);
  write_new_file(disk, temporary / kManifestName, std::as_bytes(std::span(text)));
  // The names of the files must be on disk before the folder gets its final name.
  sync_names(disk, temporary);
  const std::filesystem::path parent =
      target.folder.has_parent_path() ? target.folder.parent_path() : std::filesystem::path(".");
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
    sync_names(disk, parent);
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
}

void require_free_name(const SaveTarget& target) {
  std::error_code ignored;
  if (target.replaces || !std::filesystem::exists(target.folder, ignored)) return;
  throw IoError(ExitCode::kCannotCreate, {.what = "the checkpoint's folder exists already",
                                          .where = target.folder.string(),
                                          .hint = "choose a folder that does not exist"});
}

// Throws if the disk has less than `bytes` free. Each rank asks for its own shard before the first
// byte, so the space that other ranks have reserved meanwhile does not count twice.
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

}  // namespace

std::optional<int64_t> available_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (error || space.available == static_cast<uintmax_t>(-1)) return std::nullopt;
  return static_cast<int64_t>(space.available);
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

void remove_folder(Disk& disk, const std::filesystem::path& folder) noexcept {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    disk.unlink(entry->path().c_str());
  }
  disk.rmdir(folder.c_str());
}

std::string temporary_prefix(const std::filesystem::path& folder) {
  return fmt::format(".{}.tmp.", folder.filename().string());
}

Outcome save_state(TrainingState::Parts& state, const SaveTarget& target,
                   const SaveStateOptions& options, Disk& disk) {
  state.step = options.step;
  if (!options.weights_only) state.require_complete();
  for (const auto& each : state.objects) each->prepare();
  for (const auto& each : state.objects) each->require_saveable();
  const std::vector<StatePart> parts = state.parts_to_save(options);
  // Wait for the engines' streams, because work on them may still write the main state.
  for (const auto& each : state.objects) {
    if (each->engine() != nullptr) each->engine()->context->streams.finish();
  }
  const std::filesystem::path parent = target.folder.parent_path();
  const std::filesystem::path temporary =
      parent /
      fmt::format("{}{}-{}", temporary_prefix(target.folder), state.nonce, ++state.attempts);
  const Mesh& mesh = state.mesh();
  bool has_nonfinite = false;
  Outcome outcome = run_on_all_ranks(
      mesh, kWritingCheckpoint,
      [&] {
        const at::NoGradGuard no_grad;
        if (mesh.rank() == 0) require_free_name(target);
        make_folder(disk, temporary);
        ShardSave shard(state, parts);
        require_space(temporary, shard.bytes());
        has_nonfinite = !shard.write(disk, temporary);
      },
      &has_nonfinite);
  const bool finite = !outcome.flagged;
  if (!outcome.failed()) {
    outcome = run_on_all_ranks(mesh, kWritingCheckpoint, [&] {
      if (mesh.rank() != 0) return;
      publish(disk, manifest_of(state, parts, temporary, options, finite), temporary, target);
    });
  }
  if (outcome.failed()) {
    if (mesh.rank() == 0) remove_folder(disk, temporary);
    return outcome;
  }
  ++state.lineage.sequence;
  if (!finite && mesh.rank() == 0) {
    mesh.warn({.what = fmt::format("the checkpoint of step {} has values that are not finite",
                                   options.step),
               .where = target.folder.string(),
               .hint = "--resume auto passes over it"});
  }
  return outcome;
}

Outcome try_to_save(TrainingState& state, const std::filesystem::path& folder,
                    const SaveStateOptions& options) {
  return save_state(parts_of(state), {.folder = folder}, options, Disk::system());
}

void save(TrainingState& state, const std::filesystem::path& folder,
          const SaveStateOptions& options) {
  throw_on_all_ranks(parts_of(state).mesh(), try_to_save(state, folder, options));
}

}  // namespace fsdp
