#include <fmt/format.h>
#include <fsdp/safetensors_folder.h>
#include <sys/stat.h>

#include <optional>
#include <utility>

#include "fsdp/error.h"
#include "io/mapped_file.h"
#include "io/safetensors_index.h"

namespace fsdp {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

[[noreturn]] void cannot_read(std::string what, const std::filesystem::path& path,
                              std::string hint) {
  throw IoError(ExitCode::kIoError,
                {.what = std::move(what), .where = path.string(), .hint = std::move(hint)});
}

// Returns the device and inode of the file that has this name at the time of the call.
std::optional<std::pair<dev_t, ino_t>> identity_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return std::pair(status.st_dev, status.st_ino);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(std::filesystem::path folder) : path_(std::move(folder)) {
  std::error_code ignored;
  if (!is_there(path_)) cannot_read("the model folder does not exist", path_, "check the path");
  if (!std::filesystem::is_directory(path_, ignored)) {
    cannot_read("the model must be a folder", path_,
                "name the folder that holds config.json and model.safetensors");
  }
  // model.safetensors takes precedence over an index and its shards. SafetensorsFolderWriter relies
  // on this.
  if (is_there(path_ / kWeightsFile)) {
    if (is_there(path_ / kWeightsIndex)) {
      notes_.push_back(
          fmt::format("{} is read; {} beside it is ignored", kWeightsFile, kWeightsIndex));
    }
    files_.emplace_back(path_ / kWeightsFile);
  } else if (is_there(path_ / kWeightsIndex)) {
    open_shards(path_ / kWeightsIndex);
  } else {
    cannot_read(fmt::format("the model folder has neither {} nor {}", kWeightsFile, kWeightsIndex),
                path_,
                is_there(path_ / "pytorch_model.bin")
                    ? "use load_weights for pytorch_model.bin: only safetensors are read here"
                    : "check the path");
  }
  for (const SafetensorsFile& file : files_) {
    // This loop needs all files in `files_`: adding a file later could invalidate the pointers into
    // `files_`.
    for (const StoredTensor& tensor : file.tensors()) tensors_.push_back({&file, &tensor});
  }
}

void SafetensorsFolder::open_shards(const std::filesystem::path& index_path) {
  const auto identity = identity_of(index_path);
  const MappedFile mapping(index_path);  // keeps the file's inode number from being reused
  const SafetensorsIndex index = parse_safetensors_index(mapping.text(), index_path.string());
  for (const std::string& name : shards_of(index, index_path)) files_.emplace_back(path_ / name);
  // A writer removes the index before it replaces a shard (SafetensorsFolderWriter). So if the name
  // still refers to the file that was parsed, the opened shards belong to this index.
  if (identity_of(index_path) != identity) {
    cannot_read("the model's files were replaced while they were opened", path_,
                "try again after the other program has written them");
  }

  int64_t total_bytes = 0;
  std::vector<ShardNames> shards;
  for (const SafetensorsFile& file : files_) {
    ShardNames shard{.file = file.path().filename().string()};
    for (const StoredTensor& tensor : file.tensors()) {
      shard.tensors.push_back(tensor.name);
      total_bytes += tensor.nbytes;
    }
    shards.push_back(std::move(shard));
  }
  check_shards(index, index_path, shards);
  // A wrong total_size in the index does no harm, because each tensor is checked. So it is reported
  // as a note, not as an error.
  if (index.total_bytes && *index.total_bytes != total_bytes) {
    notes_.push_back(fmt::format("{} says {} bytes in all, but the shards hold {} bytes",
                                 kWeightsIndex, *index.total_bytes, total_bytes));
  }
}

}  // namespace fsdp
