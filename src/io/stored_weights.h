// The weights at a path, in whatever format its content says.
#pragma once

#include <fsdp/safetensors_folder.h>

#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/torch_archive.h"
#include "io/weights_file.h"

namespace fsdp {

// A safetensors file, a file of PyTorch's (torch_archive.h), or a Hugging Face folder:
// model.safetensors, or its index and shards; without these pytorch_model.bin, or its index and
// shards. Neither copied nor moved: its files name each other.
class StoredWeights {
 public:
  // Effects: maps the files and reads which tensors they hold.
  // Errors: as SafetensorsFile, SafetensorsFolder and TorchArchive; for an index of
  //   pytorch_model.bin as for the other one.
  explicit StoredWeights(const std::filesystem::path& path);
  StoredWeights(const StoredWeights&) = delete;
  StoredWeights& operator=(const StoredWeights&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<const WeightsFile*>& files() const { return files_; }
  // What a user should be told once.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void open_archive(const std::filesystem::path& path);
  void open_archives(const std::filesystem::path& index_path);
  void add(const SafetensorsFile& file) { files_.push_back(&views_.emplace_back(file)); }

  std::filesystem::path path_;
  std::optional<SafetensorsFolder> folder_;
  std::optional<SafetensorsFile> file_;
  std::deque<SafetensorsWeights> views_;  // of these
  std::deque<TorchArchive> archives_;
  std::vector<const WeightsFile*> files_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp
