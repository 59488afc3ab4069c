// BlockSums: the hashes of a file's blocks. A reader that needs a part of a file checks only the
// blocks of that part.
//
// The hash is XXH3-128. It detects damage by accident. It does not protect against an attack.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A hash in the canonical (big-endian) byte order of XXH3-128.
struct Hash128 {
  std::array<std::byte, 16> bytes{};
  bool operator==(const Hash128&) const = default;
  std::string to_string() const;  // 32 hexadecimal digits
};
Hash128 hash_of(std::span<const std::byte> bytes);
// Reads the text of a hash. Returns nothing if `text` is not 32 lower-case hexadecimal digits.
std::optional<Hash128> hash_from_text(std::string_view text);

inline constexpr int64_t kBlockBytes = 8 << 20;

// The content of a `.sum` file: 8 bytes "FSDPSUM1", the size of the described file (8 bytes,
// little-endian), then one hash per block of kBlockBytes. The last block may be shorter.
struct BlockSums {
  int64_t file_bytes = 0;
  std::vector<Hash128> blocks;

  std::vector<std::byte> to_bytes() const;
  // Errors: IoError kCorruptData that names `path` if the length or the beginning of the bytes is
  //   wrong.
  static BlockSums parse(std::span<const std::byte> bytes, const std::filesystem::path& path);
};

// Returns the path of the `.sum` file of a file: its path with the extension ".sum".
std::filesystem::path sums_path(std::filesystem::path file);
// Returns the size of the `.sum` file of a file of `file_bytes` bytes.
int64_t sums_bytes(int64_t file_bytes);

}  // namespace fsdp
