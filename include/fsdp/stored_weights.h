// Opens the weights at a path, in any supported format, so that a program can inspect them before
// load_weights (checkpoint.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class WeightsFile;

// Open weights: a safetensors file, a file that PyTorch saved, or a Hugging Face folder. A folder
// must contain model.safetensors, or its shards and index. If it contains neither, it must contain
// pytorch_model.bin, or its shards and index.
class StoredWeights {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    std::filesystem::path file;
  };

  // Effects: maps the files and reads the list of their tensors.
  // Errors: for safetensors, those of SafetensorsFile and SafetensorsFolder. For other formats,
  //   those of load_weights.
  explicit StoredWeights(const std::filesystem::path& path);
  ~StoredWeights();
  StoredWeights(const StoredWeights&) = delete;
  StoredWeights& operator=(const StoredWeights&) = delete;

  const std::filesystem::path& path() const;
  std::vector<Tensor> tensors() const;
  // Returns messages about what was ignored or is unusual in the files. The program should print
  // them once.
  const std::vector<std::string>& notes() const;

 private:
  friend const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights);

  struct Files;
  const std::unique_ptr<Files> files_;
};

}  // namespace fsdp
