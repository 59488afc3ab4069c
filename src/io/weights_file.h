// WeightsFile: a file of tensors in any format. It has names, shapes and the mapped bytes of each
// tensor.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

struct MappedTensor {
  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;      // in elements; not negative
  std::span<const std::byte> bytes;  // from the first element to the last; not aligned
};

// A file of tensors. It is immutable, so threads may share it. The bytes are valid as long as the
// object exists.
class WeightsFile {
 public:
  WeightsFile() = default;
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  virtual ~WeightsFile() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual const std::vector<MappedTensor>& tensors() const = 0;
  // Releases the pages of bytes that were read. Requires: `part` is within a tensor's bytes.
  virtual void forget(std::span<const std::byte> part) const = 0;
  // Reads one of `parts` parts of the file and compares its check sums, if the format has any.
  // Together the parts cover the file.
  // Errors: IoError kCorruptData, which names the damaged record.
  virtual void check_sums(int /*part*/, int /*parts*/) const {}
  // Returns the metadata of the file, if its format has any.
  virtual std::map<std::string, std::string> metadata() const { return {}; }
};

// A safetensors file as a WeightsFile. Requires: `file` outlives this object.
class SafetensorsWeights final : public WeightsFile {
 public:
  explicit SafetensorsWeights(const SafetensorsFile& file);

  const std::filesystem::path& path() const override { return file_.path(); }
  const std::vector<MappedTensor>& tensors() const override { return tensors_; }
  void forget(std::span<const std::byte> part) const override { file_.forget(part); }
  std::map<std::string, std::string> metadata() const override { return file_.metadata(); }

 private:
  const SafetensorsFile& file_;
  std::vector<MappedTensor> tensors_;
};

// Returns the strides of a dense tensor whose last dimension is contiguous.
std::vector<int64_t> row_major(std::span<const int64_t> shape);

}  // namespace fsdp
