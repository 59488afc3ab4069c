#include "io/found_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <system_error>

namespace fsdp {
namespace {

constexpr std::string_view kStep = "step-";
constexpr size_t kDigits = 8;

FoundCheckpoint found_checkpoint(std::filesystem::path folder, CheckpointManifest manifest) {
  const auto strategy = manifest.conditions.find("strategy");
  return {.folder = std::move(folder),
          .run = std::move(manifest.run),
          .sequence = manifest.sequence,
          .step = manifest.step,
          .time = std::move(manifest.time),
          .finite = manifest.finite,
          .world_size = manifest.world_size,
          .strategy = strategy == manifest.conditions.end() ? "" : strategy->second,
          .files = std::move(manifest.files)};
}

}  // namespace

std::filesystem::path folder_of_step(const std::filesystem::path& folder, int64_t step) {
  return folder / fmt::format("{}{:0{}}", kStep, step, kDigits);
}

bool is_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kStep)) return false;
  const std::string_view number = name.substr(kStep.size());
  return number.size() >= kDigits && number.find_first_not_of("0123456789") == number.npos;
}

bool is_checkpoint_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return false;
  const std::filesystem::path path = folder.has_filename() ? folder : folder.parent_path();
  if (is_checkpoint_name(path.filename().string())) return true;
  return std::filesystem::symlink_status(folder / kManifestName, ignored).type() !=
         std::filesystem::file_type::not_found;
}

std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return folders;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->symlink_status(ignored).type() == std::filesystem::file_type::directory) {
      folders.push_back(entry->path());
    }
  }
  if (!error) return folders;
  throw IoError(ExitCode::kIoError, {.what = "cannot read the folder of the checkpoints",
                                     .where = folder.string(),
                                     .cause = error.message(),
                                     .hint = "pass a readable folder"});
}

FoundCheckpoints find_checkpoints(const std::filesystem::path& folder) {
  FoundCheckpoints found;
  std::vector<FoundCheckpoint> all;
  for (const std::filesystem::path& path : folders_in(folder)) {
    if (!is_checkpoint_name(path.filename().string())) continue;
    try {
      all.push_back(found_checkpoint(path, read_manifest(path)));
    } catch (const Error& error) {
      found.damaged.emplace_back(path, error);
    }
  }
  const auto newest = std::ranges::max_element(
      all, {}, [](const FoundCheckpoint& each) { return std::pair(each.time, each.sequence); });
  if (newest == all.end()) return found;
  const std::string run = newest->run;
  for (FoundCheckpoint& each : all) {
    (each.run == run ? found.of_run : found.of_other_runs).push_back(std::move(each));
  }
  std::ranges::sort(found.of_run, std::ranges::greater(), &FoundCheckpoint::sequence);
  return found;
}

std::vector<FoundCheckpoint> checkpoints_beyond(int64_t limit, const std::string& run,
                                                FoundCheckpoints found) {
  std::vector<FoundCheckpoint> own;
  for (auto* list : {&found.of_run, &found.of_other_runs}) {
    std::ranges::copy_if(*list, std::back_inserter(own),
                         [&](const FoundCheckpoint& each) { return each.run == run; });
  }
  std::ranges::sort(own, std::ranges::greater(), &FoundCheckpoint::sequence);
  int64_t kept = 0;
  const auto beyond = std::ranges::find_if(own, [&](const FoundCheckpoint& each) {
    if (kept == limit) return true;
    kept += each.finite ? 1 : 0;
    return false;
  });
  own.erase(own.begin(), beyond);
  return own;
}

}  // namespace fsdp
