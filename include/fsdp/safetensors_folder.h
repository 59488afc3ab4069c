// Reads the weights of a model folder in Hugging Face's layout: model.safetensors, or several
// shards and their index.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

// A tensor and its mapped bytes. Only pages that are accessed are read from disk.
struct TensorSource {
  const SafetensorsFile* file = nullptr;
  const StoredTensor* tensor = nullptr;

  std::span<const std::byte> bytes() const { return file->bytes(*tensor); }
};

// A folder of weights. Move-only. The sources and spans that it returns are valid as long as the
// object exists.
class SafetensorsFolder {
 public:
  // Effects: maps the weight files and reads their headers.
  // Errors: IoError kIoError if the folder or a file is missing. IoError kCorruptData if a file is
  //   malformed, or if the index and the shards do not name the same tensors.
  explicit SafetensorsFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return path_; }
  std::span<const SafetensorsFile> files() const { return files_; }
  // Returns the tensors of the first file in the order of their bytes, then those of the next file.
  std::span<const TensorSource> tensors() const { return tensors_; }
  // Returns messages about contradictions in the folder, for example an index that is ignored. The
  // program should print them once.
  std::span<const std::string> notes() const { return notes_; }

 private:
  void open_shards(const std::filesystem::path& index_path);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorSource> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp
