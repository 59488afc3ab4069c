// The weights at a path, in whatever format its content says: for a look into them before
// load_weights (checkpoint.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class WeightsFile;

// A safetensors file, a file of PyTorch's, or a Hugging Face folder: model.safetensors, or its
// index and shards; without these pytorch_model.bin, or its index and shards.
class StoredWeights {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    std::filesystem::path file;
  };

  // Effects: maps the files and reads which tensors they hold.
  // Errors: as SafetensorsFile and SafetensorsFolder; for other files and folders as load_weights.
  explicit StoredWeights(const std::filesystem::path& path);
  ~StoredWeights();
  StoredWeights(const StoredWeights&) = delete;
  StoredWeights& operator=(const StoredWeights&) = delete;

  const std::filesystem::path& path() const;
  std::vector<Tensor> tensors() const;
  // Returns what a user should be told once.
  const std::vector<std::string>& notes() const;

 private:
  friend const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights);

  struct Files;
  const std::unique_ptr<Files> files_;
};

}  // namespace fsdp
