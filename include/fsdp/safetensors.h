// Reads and writes safetensors files.
//
//   const fsdp::SafetensorsFile file("model.safetensors");
//   for (const fsdp::StoredTensor& tensor : file.tensors()) use(tensor.name, file.bytes(tensor));
//
//   fsdp::SafetensorsWriter writer("out.safetensors", {{"w", fsdp::StoredDType::kF32, {2, 3}}});
//   writer.append("w", bytes);  // in pieces of any size
//   writer.commit();            // only now does out.safetensors change
#pragma once

#include <fsdp/scalar_type.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Element types of a safetensors file, in the order of the safetensors library.
enum class StoredDType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

std::string_view name_of(StoredDType dtype);  // "F32", "BF16", …, as in the file format
int64_t bits_of(StoredDType dtype);           // bits of one element; may be 4 or 6
std::optional<StoredDType> stored_dtype_from_name(std::string_view name);
// Map LibTorch's float32, bfloat16, float16, float64, int64, int32 and uint8 to stored types and
// back. Errors: stored_dtype throws InvalidArgument for any other type. scalar_type_of returns
// nothing for any other dtype.
StoredDType stored_dtype(c10::ScalarType type);
std::optional<c10::ScalarType> scalar_type_of(StoredDType dtype);

struct TensorSpec {
  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;  // empty: 0-d, one element
};

// A tensor in a file. It is row-major and little-endian. The address of its bytes need not be a
// multiple of the element size.
struct StoredTensor : TensorSpec {
  int64_t numel = 0;
  int64_t nbytes = 0;
  int64_t offset_bytes = 0;  // from the start of the file
};

// A memory-mapped safetensors file. Only pages that are accessed are read from disk. The object is
// immutable after construction, so threads may share it. The spans that it returns are valid as
// long as the object exists.
// Requires: no process truncates the file as long as this object exists. Replacing the file by a
//   rename is allowed.
class SafetensorsFile {
 public:
  // Effects: reads only the header, and uses memory in proportion to the header's size. If the
  //   stated size of the header exceeds the file's size, no memory is allocated for the header.
  // Errors: IoError kIoError if the file cannot be read. IoError kCorruptData if the file is not a
  //   well-formed safetensors file; the error names the tensor and the byte.
  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;
  const std::vector<StoredTensor>& tensors() const;  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const;
  const StoredTensor* find(std::string_view name) const;  // null if there is none
  // Returns the tensor's bytes. Requires: `tensor` is one of tensors().
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  // Releases the pages of `part` from memory. Without this call, pages that were read continue to
  // count as memory of this process. A later access reads the pages again.
  // Requires: `part` is inside the bytes of a tensor.
  void forget(std::span<const std::byte> part) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

// A writer that writes a safetensors file incrementally; it never holds a whole tensor. `path` is
// unchanged until commit() renames the file. Without a commit, the destructor removes the written
// data.
class SafetensorsWriter {
 public:
  // Effects: creates a temporary file beside `path` and writes the header. Tensors are ordered by
  //   decreasing element size, then by name, so every tensor is aligned.
  // Errors: IoError kCannotCreate or kIoError. InvalidArgument if a name occurs twice or is
  //   "__metadata__", if a shape is negative or overflows, or if a tensor's size is not a whole
  //   number of bytes.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  // Writes the next `bytes` of a tensor. Calls for different tensors may alternate.
  // Errors: IoError kIoError (for example, disk full). InvalidArgument for an unknown name or for
  //   too many bytes.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // Writes all bytes to disk. A later commit() then only renames the file.
  // Errors: StateError if bytes of some tensors are missing (the error names these tensors);
  //   StateError on a second call; IoError kIoError.
  void finish();
  // Calls finish() if the caller has not done so, and then renames the temporary file to `path`.
  // The rename is on disk when the call returns.
  // Errors: those of finish(), and IoError kCannotCreate.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
