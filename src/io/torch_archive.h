// Reads weights that PyTorch saved: by torch.save(model.state_dict(), file) from Python, as a
// Hugging Face pytorch_model.bin, or by torch::save(model, file) from C++.
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

// The layout of a zip archive. The tensors are views of its records. Their names are the keys of a
// state_dict, or the names of a module's members joined by dots. A state_dict may also be the entry
// "state_dict", "model_state_dict" or "model" of a larger dict.
struct TorchLayout {
  std::vector<MappedTensor> tensors;
  std::vector<std::string> notes;  // for the user; each occurs once
  ZipDirectory records;
  bool has_check_sums = true;
};

// Reads the layout.
// Effects: reads the archive's directory, its pickle and records of a few bytes.
// Errors: IoError kCorruptData in the cases of parse_zip and parse_pickle. Also if a tensor is not
//   a view of its record, has its neg or conj bit set, or is quantised or sparse; the error then
//   names the tensor. Also if the archive has another byte order or an unknown version.
TorchLayout parse_torch_archive(std::span<const std::byte> bytes, const std::string& file);

class TorchArchive final : public WeightsFile {
 public:
  // Errors: as parse_torch_archive; IoError kIoError if the file cannot be read; kCorruptData, with
  //   a hint, if the file has the format before PyTorch 1.6.
  explicit TorchArchive(std::filesystem::path path);

  // Returns true if the file begins as an archive of PyTorch, also in the format before PyTorch
  // 1.6, which the constructor refuses with a hint. Returns false if the file cannot be read.
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
