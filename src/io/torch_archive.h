// Weights as PyTorch saves them: torch.save(model.state_dict(), file) from Python, a Hugging Face
// pytorch_model.bin, torch::save(model, file) from C++.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/weights_file.h"
#include "io/zip_directory.h"

namespace fsdp {

// A zip archive, of whose records the tensors are views. Names are a state_dict's keys, or those of
// a module's members, joined by dots. A state_dict may be an entry "state_dict", "model_state_dict"
// or "model" of a larger dict.
struct TorchLayout {
  std::vector<MappedTensor> tensors;
  std::vector<std::string> notes;  // for the user, once each
  ZipDirectory records;
  bool has_check_sums = true;
};

// Reads the layout.
// Effects: reads the archive's directory, its pickle and records of a few bytes.
// Errors: IoError kCorruptData: as parse_zip and parse_pickle; with the tensor if it is no view of
//   its record, has its neg or conj bit set, or is quantised or sparse; for another byte order or
//   an unknown version.
TorchLayout parse_torch_archive(std::span<const std::byte> bytes, const std::string& file);

class TorchArchive final : public WeightsFile {
 public:
  // Errors: also IoError kIoError if the file cannot be read; kCorruptData with a hint for the
  //   format before PyTorch 1.6.
  explicit TorchArchive(std::filesystem::path path);

  // Returns true if the file begins as one, also in the format before PyTorch 1.6, which the
  // constructor refuses with a hint. False if it cannot be read.
  static bool is_one(const std::filesystem::path& path);

  const std::filesystem::path& path() const override { return path_; }
  const std::vector<MappedTensor>& tensors() const override { return layout_.tensors; }
  void forget(std::span<const std::byte> part) const override { mapping_.forget(part); }
  void check_sums(int part, int parts) const override;
  std::span<const std::string> notes() const { return layout_.notes; }

 private:
  std::filesystem::path path_;
  MappedFile mapping_;
  TorchLayout layout_;
};

}  // namespace fsdp
