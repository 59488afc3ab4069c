#include "programs/checkpoint_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/checked_shard.h"
#include "io/manifest_reader.h"
#include "io/manifest_rules.h"
#include "io/plain_file.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

bool is_shard(const ManifestFile& file) { return file.name != kIntervalsName; }

class Check {
 public:
  Check(const std::filesystem::path& folder,
        const std::function<void(const std::string& line)>& say)
      : folder_(folder), name_(printable(name_of_folder(folder))), say_(say) {}

  CheckedCheckpoint run() {
    read();
    if (manifest_) {
      check_shards();
      attempt([&] { note_other_files(); });
    }
    std::string summary = name_ + ": ";
    if (manifest_) {
      const int64_t shards = std::ssize(manifest_->files) - 1;
      summary += fmt::format("{} shard{}, ", shards, shards == 1 ? "" : "s");
    }
    constexpr std::string_view kStates[] = {"whole", "damaged", "unreadable"};
    summary += fmt::format("{}, {}{}", format_bytes(bytes_in(folder_)),
                           kStates[static_cast<size_t>(state_)],
                           manifest_ && !manifest_->finite ? ", values are not finite" : "");
    return {.state = state_, .summary = std::move(summary)};
  }

 private:
  // Runs `work`. Returns true if it throws no error. Otherwise reports the error as a finding and
  // returns false.
  template <class Work>
  bool attempt(const Work& work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      if (error.code() == ExitCode::kCorruptData) {
        state_ = CheckpointState::kDamaged;
      } else if (state_ == CheckpointState::kWhole) {
        state_ = CheckpointState::kUnreadable;
      }
      ErrorText text = error.text();
      text.hint = {};
      say_(printable(fmt::format("{}: {}", name_, Error(error.code(), std::move(text)).what())));
      return false;
    }
  }

  // Reads the manifest. If only the intervals are damaged, the shards are checked without them.
  void read() {
    has_intervals_ = attempt([&] { manifest_ = read_manifest(folder_); });
    if (has_intervals_) return;
    try {
      const std::filesystem::path path = folder_ / kManifestName;
      const MappedFile file = map_plain_file(path);
      if (std::ssize(file.bytes()) <= kMaxManifestBytes) {
        manifest_ = parse_manifest(file.text(), path);
      }
    } catch (const Error&) {
      // The error is ignored, because the error of the manifest is a finding already.
    }
  }

  void check_shards() {
    std::vector<ManifestInterval>& intervals = manifest_->intervals;
    const auto place = [](const ManifestInterval& each) {
      return std::pair(each.file, each.tensor);
    };
    std::ranges::sort(intervals, {}, place);
    for (int64_t i = 0; i + 1 < std::ssize(manifest_->files); ++i) {
      const ManifestFile& file = manifest_->files[static_cast<size_t>(i)];
      const auto own = std::ranges::equal_range(intervals, i, {}, &ManifestInterval::file);
      attempt([&] {
        CheckedShard shard(folder_ / file.name, file.bytes, file.sum);
        if (has_intervals_) compare(shard, own);
        shard.check_all();
      });
    }
  }

  // Compares the tensors of a shard with the intervals that the manifest lists for this shard.
  void compare(const CheckedShard& shard, std::span<const ManifestInterval> intervals) {
    for (const ManifestInterval& each : intervals) {
      const ManifestTensor& expected = manifest_->tensors[static_cast<size_t>(each.tensor)];
      attempt([&] { compare(shard, each, expected); });
    }
  }

  static void compare(const CheckedShard& shard, const ManifestInterval& interval,
                      const ManifestTensor& expected) {
    const auto damaged = [&](const std::string& what) {
      throw IoError(
          ExitCode::kCorruptData,
          {.what = fmt::format("{} does not have elements [{}, {}) of {}: {}",
                               shard.path().filename().string(), interval.begin,
                               interval.begin + interval.numel, quoted_name(expected.name), what),
           .where = shard.path().string()});
    };
    const StoredTensor* found = shard.find(expected.name);
    if (found == nullptr) damaged("the tensor is missing");
    if (found->dtype == expected.dtype && found->shape == std::vector{interval.numel}) return;
    damaged(fmt::format("the tensor is {} of shape {}, expected {} of shape [{}]",
                        name_of(found->dtype), format_shape(found->shape), name_of(expected.dtype),
                        interval.numel));
  }

  void note_other_files() {
    for (const std::string& other : other_files(folder_, manifest_->files)) {
      say_(printable(fmt::format("{}: note: {} is not part of the checkpoint ({})", name_,
                                 quoted_name(other), (folder_ / other).string())));
    }
  }

  const std::filesystem::path& folder_;
  const std::string name_;
  const std::function<void(const std::string& line)>& say_;
  CheckpointState state_ = CheckpointState::kWhole;
  std::optional<CheckpointManifest> manifest_;
  bool has_intervals_ = false;
};

}  // namespace

CheckedCheckpoint check_checkpoint(const std::filesystem::path& folder,
                                   const std::function<void(const std::string& line)>& say) {
  return Check(folder, say).run();
}

void check_files(const std::filesystem::path& folder, const std::vector<ManifestFile>& files) {
  const auto check_size = [&](const std::filesystem::path& path, int64_t expected) {
    const int64_t bytes = std::ssize(map_plain_file(path).bytes());
    if (bytes == expected) return;
    throw IoError(ExitCode::kCorruptData,
                  {.what = fmt::format("{} has {} bytes, expected {}", path.filename().string(),
                                       bytes, expected),
                   .where = path.string()});
  };
  for (const ManifestFile& file : files) {
    check_size(folder / file.name, file.bytes);
    if (is_shard(file)) check_size(sums_path(folder / file.name), sums_bytes(file.bytes));
  }
}

std::vector<std::string> other_files(const std::filesystem::path& folder,
                                     const std::vector<ManifestFile>& files) {
  std::set<std::string> known{std::string(kManifestName)};
  for (const ManifestFile& file : files) {
    known.insert(file.name);
    if (is_shard(file)) known.insert(sums_path(file.name).string());
  }
  std::vector<std::string> others;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!known.contains(name)) others.push_back(std::move(name));
  }
  if (error) {
    throw IoError(
        ExitCode::kIoError,
        {.what = "cannot read the folder", .where = folder.string(), .cause = error.message()});
  }
  std::ranges::sort(others);
  return others;
}

int64_t bytes_in(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored) || entry->is_symlink(ignored)) continue;
    const uintmax_t size = entry->file_size(ignored);
    if (!ignored) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

std::string name_of_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::absolute(folder, ignored).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace fsdp
