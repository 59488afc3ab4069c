// Opens the weights at a path, in any supported format, for inspection before load_weights
// (checkpoint.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class WeightsFile;

// Open weights: a safetensors file, a file of PyTorch's, or a Hugging Face folder with
// model.safetensors or its index and shards, else with pytorch_model.bin or its index and shards.
class StoredWeights {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    std::filesystem::path file;
  };

  // Effects: maps the files and reads the list of their tensors.
  // Errors: as SafetensorsFile and SafetensorsFolder; for other files and folders as load_weights.
  explicit StoredWeights(const std::filesystem::path& path);
  ~StoredWeights();
  StoredWeights(const StoredWeights&) = delete;
  StoredWeights& operator=(const StoredWeights&) = delete;

  const std::filesystem::path& path() const;
  std::vector<Tensor> tensors() const;
  // Returns messages for the user, to be printed once.
  const std::vector<std::string>& notes() const;

 private:
  friend const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights);

  struct Files;
  const std::unique_ptr<Files> files_;
};

}  // namespace fsdp
