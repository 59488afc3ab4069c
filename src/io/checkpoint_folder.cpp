#include "io/checkpoint_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_failure.h"
#include "io/found_checkpoints.h"
#include "io/new_file.h"

namespace fsdp {
namespace {

// Returns true for ".step-00001200.tmp.…", the name of a checkpoint that is not finished.
bool is_temporary_name(std::string_view name) {
  if (!name.starts_with('.')) return false;
  const size_t end = name.find(".tmp.");
  return end != name.npos && is_checkpoint_name(name.substr(1, end - 1));
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, Disk& disk)
    : folder_(std::move(folder)), disk_(disk) {
  std::error_code error;
  // The folders that create_directories makes below must be on disk before a checkpoint is. Their
  // names are in the parent folders, so these are synchronized.
  std::vector<std::filesystem::path> parents;
  for (std::filesystem::path path = std::filesystem::absolute(folder_);
       !std::filesystem::exists(path, error) && path.has_relative_path();
       path = path.parent_path()) {
    parents.push_back(path.parent_path());
  }
  is_new_ = !parents.empty();
  std::filesystem::create_directories(folder_, error);
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder_, ignored)) {
    throw IoError(ExitCode::kCannotCreate,
                  {.what = "the folder of the checkpoints cannot be created",
                   .where = folder_.string(),
                   .cause = error ? error.message() : "a file has this name",
                   .hint = "choose a writable --save-dir"});
  }
  for (const std::filesystem::path& parent : parents) sync_names(disk_, parent);
  lock_.emplace(folder_, ".fsdp.lock");
  if (lock_->note()) notes_.push_back(*lock_->note());
  // If the file system has no locks, another job may still write the temporary folders, so none is
  // removed. Otherwise this job holds the lock, and no other living job writes them.
  if (lock_->note()) return;
  for (const std::filesystem::path& path : folders_in(folder_)) {
    if (!is_temporary_name(path.filename().string())) continue;
    remove_folder(disk_, path);
    notes_.push_back(fmt::format("a checkpoint that was not finished was removed ({})",
                                 printable(path.filename().string())));
  }
}

CheckpointFolder::~CheckpointFolder() {
  lock_.reset();
  if (is_new_) ::rmdir(folder_.c_str());  // fails if the folder is not empty
}

std::optional<std::string> CheckpointFolder::remove(const std::filesystem::path& checkpoint) {
  // The folder gets a temporary name before its files are removed. If the removal is interrupted,
  // the next job finds the temporary name and removes the rest.
  const std::filesystem::path old =
      folder_ / fmt::format(".{}.tmp.old", checkpoint.filename().string());
  const auto failed = [&](std::string_view why) {
    return fmt::format("{} cannot be removed: {}", checkpoint.string(), why);
  };
  if (disk_.rename(checkpoint.c_str(), old.c_str()) != 0) return failed(system_cause(errno));
  remove_folder(disk_, old);
  std::error_code ignored;
  if (!std::filesystem::exists(old, ignored)) return std::nullopt;
  return failed(fmt::format("{} is not empty", old.filename().string()));
}

std::vector<std::string> CheckpointFolder::prune(const std::string& run, int64_t limit) {
  std::vector<std::string> errors;
  for (const FoundCheckpoint& each : checkpoints_beyond(limit, run, find_checkpoints(folder_))) {
    if (std::optional<std::string> error = remove(each.folder)) errors.push_back(*error);
  }
  return errors;
}

}  // namespace fsdp
