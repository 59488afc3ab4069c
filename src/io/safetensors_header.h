// The layout of a safetensors file: 8 bytes of little-endian header size N, N bytes of JSON,
// tensors.
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
// The most tensors and metadata entries in a file. Larger sets are sharded in practice; a hostile
// header of 100 MB could claim two million.
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
// Returns the numbers of elements and bytes. Empty if the product overflows, a dimension is
// negative, or the last byte would not be full.
std::optional<ElementCount> count_elements(StoredDType dtype, std::span<const int64_t> shape);

// Reads the layout of a whole file in memory and checks all that can be checked without its values.
// `file` is used for messages only.
// Effects: reads only the header's bytes; allocates nothing until the file is known to hold them,
//   and then at most their size and 16 MiB.
// Errors: IoError kCorruptData with the tensor and the byte.
SafetensorsLayout parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// Returns "[2, 384]".
std::string format_shape(std::span<const int64_t> shape);

}  // namespace fsdp
