// A file of tensors, whatever its format: names, shapes, and where each element's bytes are mapped.
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
  std::span<const std::byte> bytes;  // from its first element to its last; at any address
};

// Immutable, so threads may share one. Tensors' bytes live as long as this object.
class WeightsFile {
 public:
  WeightsFile() = default;
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  virtual ~WeightsFile() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual const std::vector<MappedTensor>& tensors() const = 0;
  // Gives the pages of bytes that were read back to the system. Requires: `part` is of a tensor's
  // bytes.
  virtual void forget(std::span<const std::byte> part) const = 0;
  // Reads one of `parts` parts of the file and compares its check sums, if the format has any: all
  // parts together are the whole file.
  // Errors: IoError kCorruptData with the record that is damaged.
  virtual void check_sums(int /*part*/, int /*parts*/) const {}
  // What the file says of itself, if its format can.
  virtual std::map<std::string, std::string> metadata() const { return {}; }
};

// Of a file that lives as long.
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

// Strides of a tensor whose elements lie one after the other, the last dimension's side by side.
std::vector<int64_t> row_major(std::span<const int64_t> shape);

}  // namespace fsdp
