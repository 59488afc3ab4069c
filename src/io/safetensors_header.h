// The layout of a safetensors file: 8 bytes little-endian header size N, N bytes of JSON, tensors.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

inline constexpr int64_t kSafetensorsPrefixBytes = 8;
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxDimensions = 64;
// Tensors and metadata entries of one file. Files of many more tensors are sharded in practice; a
// hostile header of 100 MB could claim two million.
inline constexpr int64_t kMaxEntries = 1 << 16;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct SafetensorsLayout {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

struct ElementCount {
  int64_t numel;
  int64_t nbytes;
};
// Empty if the product overflows, a dimension is negative, or the last byte would not be full.
std::optional<ElementCount> count_elements(StoredDType dtype, std::span<const int64_t> shape);

// Reads the layout of a whole file from memory and checks everything that can be checked without
// looking at the values. `file` is used for messages only.
// Effects: touches only the header's bytes; allocates nothing before they are known to be there,
//          and then at most their size and 16 MiB.
// Errors: IoError kCorruptData naming the tensor and the byte.
SafetensorsLayout parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// "[2, 384]"
std::string format_shape(std::span<const int64_t> shape);

}  // namespace fsdp
