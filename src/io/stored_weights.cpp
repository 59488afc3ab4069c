#include "io/stored_weights.h"

#include <set>
#include <utility>

#include "fsdp/error.h"
#include "io/mapped_file.h"
#include "io/safetensors_index.h"

namespace fsdp {
namespace {

// Of a folder as transformers wrote it before safetensors.
constexpr const char* kPickledWeights = "pytorch_model.bin";
constexpr const char* kPickledIndex = "pytorch_model.bin.index.json";

bool holds(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

StoredWeights::StoredWeights(const std::filesystem::path& path) : path_(path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    if (TorchArchive::is_one(path)) {
      open_archive(path);
    } else {
      add(file_.emplace(path));
    }
    return;
  }
  // Where a folder has both, safetensors are read.
  const bool has_safetensors = holds(path / kWeightsFile) || holds(path / kWeightsIndex);
  if (!has_safetensors && holds(path / kPickledWeights)) {
    open_archive(path / kPickledWeights);
  } else if (!has_safetensors && holds(path / kPickledIndex)) {
    open_archives(path / kPickledIndex);
  } else {
    folder_.emplace(path);
    for (const SafetensorsFile& file : folder_->files()) add(file);
    notes_.assign(folder_->notes().begin(), folder_->notes().end());
  }
}

void StoredWeights::open_archive(const std::filesystem::path& path) {
  const TorchArchive& archive = archives_.emplace_back(path);
  files_.push_back(&archive);
  notes_.insert(notes_.end(), archive.notes().begin(), archive.notes().end());
}

void StoredWeights::open_archives(const std::filesystem::path& index_path) {
  const SafetensorsIndex index =
      parse_safetensors_index(MappedFile(index_path).text(), index_path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of_tensor) names.insert(file);
  if (names.empty()) {
    throw IoError(ExitCode::kCorruptData, {.what = "the index names no tensor",
                                           .where = index_path.string(),
                                           .hint = "fetch the model again"});
  }
  std::vector<ShardNames> shards;
  for (const std::string& name : names) {
    open_archive(path_ / name);
    ShardNames shard{.file = name};
    for (const MappedTensor& tensor : archives_.back().tensors()) {
      shard.tensors.push_back(tensor.name);
    }
    shards.push_back(std::move(shard));
  }
  check_shards(index, index_path, shards);
}

}  // namespace fsdp
