// Reads the layout of a safetensors file: 8 bytes with the little-endian header size N, then N
// bytes of JSON, then the tensors.
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
// The limit for tensors and metadata entries in a file. Larger sets are sharded in practice. A
// hostile header of 100 MB could claim two million entries.
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
// Returns the numbers of elements and bytes. Returns nothing if the product overflows, if a
// dimension is negative, or if the elements do not fill whole bytes.
std::optional<ElementCount> count_elements(StoredDType dtype, std::span<const int64_t> shape);

// Reads the layout of a file that is in memory and checks everything except the tensors' values.
// `file` is used only for messages.
// Effects: reads only the bytes of the header. Before it allocates, it checks that the file is long
//   enough to hold the header. It allocates at most the size of the header plus 16 MiB.
// Errors: IoError kCorruptData, which names the tensor and the byte.
SafetensorsLayout parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// Returns "[2, 384]".
std::string format_shape(std::span<const int64_t> shape);

}  // namespace fsdp
