#include <fmt/format.h>
#include <fsdp/safetensors_folder.h>

#include <set>

#include "fsdp/error.h"
#include "io/mapped_file.h"
#include "io/printable_name.h"
#include "io/safetensors_index.h"

namespace fsdp {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

[[noreturn]] void cannot_read(std::string what, const std::filesystem::path& path,
                              std::string hint) {
  throw IoError(
      ExitCode::kIoError,
      {.what = std::move(what), .where = path.string(), .cause = {}, .hint = std::move(hint)});
}

[[noreturn]] void corrupt(std::string what, const std::filesystem::path& path) {
  throw IoError(ExitCode::kCorruptData, {.what = std::move(what),
                                         .where = path.string(),
                                         .cause = {},
                                         .hint = "the index and the shards do not belong together; "
                                                 "fetch the model again"});
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(std::filesystem::path folder) : path_(std::move(folder)) {
  std::error_code ignored;
  if (!is_there(path_)) cannot_read("the model folder does not exist", path_, "check the path");
  if (!std::filesystem::is_directory(path_, ignored)) {
    cannot_read("the model must be a folder", path_,
                "name the folder that holds config.json and model.safetensors");
  }
  if (is_there(path_ / kWeights)) {
    if (is_there(path_ / kIndex)) {
      notes_.push_back(fmt::format("{} is used, {} beside it is not", kWeights, kIndex));
    }
    files_.emplace_back(path_ / kWeights);
  } else if (is_there(path_ / kIndex)) {
    open_shards(path_ / kIndex);
  } else {
    const bool pickled = is_there(path_ / "pytorch_model.bin");
    cannot_read(fmt::format("the model folder has neither {} nor {}", kWeights, kIndex), path_,
                pickled ? "pytorch_model.bin can run code and is not read; save the model as "
                          "safetensors"
                        : "check the path");
  }
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) tensors_.push_back({&file, &tensor});
  }
}

void SafetensorsFolder::open_shards(const std::filesystem::path& index_path) {
  const MappedFile mapping(index_path);
  const SafetensorsIndex index = parse_safetensors_index(mapping.text(), index_path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of_tensor) names.insert(file);
  if (names.empty()) corrupt("the index names no tensor", index_path);
  for (const std::string& name : names) files_.emplace_back(path_ / name);

  int64_t total_bytes = 0;
  size_t found = 0;
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      const auto entry = index.file_of_tensor.find(tensor.name);
      if (entry == index.file_of_tensor.end() || entry->second != file.path().filename()) {
        corrupt(fmt::format("tensor {} is in {}, where the index does not have it",
                            quoted_name(tensor.name), file.path().filename().string()),
                index_path);
      }
      total_bytes += tensor.nbytes;
      ++found;
    }
  }
  if (found != index.file_of_tensor.size()) {
    for (const auto& [tensor, name] : index.file_of_tensor) {
      for (const SafetensorsFile& file : files_) {
        if (file.path().filename() != name || file.find(tensor) != nullptr) continue;
        corrupt(fmt::format("the index has tensor {} in {}, which does not hold it",
                            quoted_name(tensor), name),
                index_path);
      }
    }
  }
  if (index.total_bytes && *index.total_bytes != total_bytes) {
    notes_.push_back(fmt::format("{} says {} bytes in all; the shards hold {}", kIndex,
                                 *index.total_bytes, total_bytes));
  }
}

}  // namespace fsdp
