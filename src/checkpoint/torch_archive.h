// Weights as PyTorch saves them: torch.save(model.state_dict(), file) from Python, a Hugging Face
// pytorch_model.bin, torch::save(model, file) from C++.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/weights_file.h"
#include "io/mapped_file.h"

namespace fsdp {

// A zip archive that is mapped, of whose records the tensors are views. Names are a state_dict's
// keys, or those of a module's members, joined by dots. A state_dict may be an entry "state_dict",
// "model_state_dict" or "model" of a larger dict.
class TorchArchive final : public WeightsFile {
 public:
  // Effects: reads the archive's directory and its pickle; no record.
  // Errors: IoError kIoError if the file cannot be read; kCorruptData, with the tensor, for what is
  //   no such archive, for compressed records and those of another byte order, for a tensor that is
  //   no view of its record, and as parse_pickle.
  explicit TorchArchive(std::filesystem::path path);

  // By its first bytes, also where torch.save wrote it before 1.6, which is refused with a hint.
  // False if it cannot be read.
  static bool is_one(const std::filesystem::path& path);

  const std::filesystem::path& path() const override { return path_; }
  const std::vector<MappedTensor>& tensors() const override { return tensors_; }
  void forget(std::span<const std::byte> part) const override { mapping_.forget(part); }
  // What a user should be told once.
  std::span<const std::string> notes() const { return notes_; }

 private:
  std::filesystem::path path_;
  MappedFile mapping_;
  std::vector<MappedTensor> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp
