#include "io/stored_weights.h"

#include <deque>
#include <optional>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/safetensors_folder.h"
#include "io/mapped_file.h"
#include "io/safetensors_index.h"
#include "io/torch_archive.h"

namespace fsdp {
namespace {

// The file names that transformers used for weights before safetensors.
constexpr const char* kPickledWeights = "pytorch_model.bin";
constexpr const char* kPickledIndex = "pytorch_model.bin.index.json";

bool holds(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

// The open files that a path names. The object is neither copied nor moved, because `views` and
// `files` point to other members.
struct StoredWeights::Files {
  explicit Files(const std::filesystem::path& its_path);
  void open_archive(const std::filesystem::path& archive_path);
  void open_archives(const std::filesystem::path& index_path);
  void add(const SafetensorsFile& file) { files.push_back(&views.emplace_back(file)); }

  const std::filesystem::path path;
  std::optional<SafetensorsFolder> folder;
  std::optional<SafetensorsFile> file;
  std::deque<SafetensorsWeights> views;  // views of `folder` and `file`
  std::deque<TorchArchive> archives;
  std::vector<const WeightsFile*> files;
  std::vector<std::string> notes;
};

StoredWeights::Files::Files(const std::filesystem::path& its_path) : path(its_path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    // The format is recognised by the file's content, not by its name.
    if (TorchArchive::is_one(path)) {
      open_archive(path);
    } else {
      add(file.emplace(path));
    }
    return;
  }
  // If a folder has files of both formats, the safetensors are read. If it has files of neither
  // format, the constructor of SafetensorsFolder throws.
  const bool has_safetensors = holds(path / kWeightsFile) || holds(path / kWeightsIndex);
  if (!has_safetensors && holds(path / kPickledWeights)) {
    open_archive(path / kPickledWeights);
  } else if (!has_safetensors && holds(path / kPickledIndex)) {
    open_archives(path / kPickledIndex);
  } else {
    folder.emplace(path);
    for (const SafetensorsFile& each : folder->files()) add(each);
    notes.assign(folder->notes().begin(), folder->notes().end());
  }
}

void StoredWeights::Files::open_archive(const std::filesystem::path& archive_path) {
  const TorchArchive& archive = archives.emplace_back(archive_path);
  files.push_back(&archive);
  notes.insert(notes.end(), archive.notes().begin(), archive.notes().end());
}

void StoredWeights::Files::open_archives(const std::filesystem::path& index_path) {
  const SafetensorsIndex index =
      // The index owns its strings, so the mapping may be destroyed here.
      parse_safetensors_index(MappedFile(index_path).text(), index_path.string());
  std::vector<ShardNames> shards;
  for (const std::string& name : shards_of(index, index_path)) {
    open_archive(path / name);
    ShardNames shard{.file = name};
    for (const MappedTensor& tensor : archives.back().tensors()) {
      shard.tensors.push_back(tensor.name);
    }
    shards.push_back(std::move(shard));
  }
  check_shards(index, index_path, shards);
}

StoredWeights::StoredWeights(const std::filesystem::path& path)
    : files_(std::make_unique<Files>(path)) {}
StoredWeights::~StoredWeights() = default;

const std::filesystem::path& StoredWeights::path() const { return files_->path; }
const std::vector<std::string>& StoredWeights::notes() const { return files_->notes; }

std::vector<StoredWeights::Tensor> StoredWeights::tensors() const {
  std::vector<Tensor> all;
  for (const WeightsFile* file : files_->files) {
    for (const MappedTensor& tensor : file->tensors()) {
      all.push_back({.name = tensor.name, .shape = tensor.shape, .file = file->path()});
    }
  }
  return all;
}

const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights) {
  return weights.files_->files;
}

}  // namespace fsdp
