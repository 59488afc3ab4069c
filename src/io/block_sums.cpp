#include "io/block_sums.h"

#include <fmt/format.h>

// The hash functions are compiled into this file, so that programs with this library need no hash
// package.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr std::string_view kSumsMagic = "FSDPSUM1";
constexpr int64_t kSumsPrefixBytes = 16;

}  // namespace

std::string Hash128::to_string() const {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Hash128 hash_of(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Hash128 hash;
  static_assert(sizeof(canonical.digest) == sizeof(hash.bytes));
  std::memcpy(hash.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return hash;
}

std::optional<Hash128> hash_from_text(std::string_view text) {
  Hash128 hash;
  if (text.size() != 2 * hash.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    hash.bytes[i / 2] = hash.bytes[i / 2] << 4 | static_cast<std::byte>(digit);
  }
  return hash;
}

std::vector<std::byte> BlockSums::to_bytes() const {
  std::vector<std::byte> bytes(static_cast<size_t>(kSumsPrefixBytes));
  std::memcpy(bytes.data(), kSumsMagic.data(), kSumsMagic.size());
  for (size_t i = 0; i < 8; ++i) bytes[8 + i] = static_cast<std::byte>(file_bytes >> (8 * i));
  for (const Hash128& hash : blocks)
    bytes.insert(bytes.end(), hash.bytes.begin(), hash.bytes.end());
  return bytes;
}

BlockSums BlockSums::parse(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const auto refuse_sums = [&](std::string what) {
    throw IoError(ExitCode::kCorruptData,
                  {.what = fmt::format("{} is damaged: {}", path.filename().string(), what),
                   .where = path.string()});
  };
  const int64_t size = std::ssize(bytes);
  if (size < kSumsPrefixBytes || std::memcmp(bytes.data(), kSumsMagic.data(), kSumsMagic.size())) {
    refuse_sums(fmt::format("it does not begin with {}", kSumsMagic));
  }
  uint64_t claimed = 0;
  for (size_t i = 8; i > 0; --i) claimed = claimed << 8 | static_cast<uint64_t>(bytes[7 + i]);
  // The number of hashes is computed from the size of the `.sum` file. The claimed size of the
  // described file is only compared with it, so a wrong claim cannot cause a large allocation.
  const int64_t hash_bytes = size - kSumsPrefixBytes;
  const auto count = static_cast<uint64_t>(hash_bytes) / sizeof(Hash128);
  const uint64_t needed = claimed / kBlockBytes + (claimed % kBlockBytes != 0);
  if (claimed >> 63 != 0 || needed != count || hash_bytes % int64_t{sizeof(Hash128)} != 0) {
    refuse_sums(fmt::format("it has {} bytes of hashes for a file of {} bytes in blocks of {}",
                            hash_bytes, claimed, kBlockBytes));
  }
  BlockSums sums{.file_bytes = static_cast<int64_t>(claimed), .blocks = {}};
  sums.blocks.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto from = bytes.subspan(kSumsPrefixBytes + i * sizeof(Hash128), sizeof(Hash128));
    std::ranges::copy(from, sums.blocks[i].bytes.begin());
  }
  return sums;
}

std::filesystem::path sums_path(std::filesystem::path file) {
  return file.replace_extension(".sum");
}

int64_t sums_bytes(int64_t file_bytes) {
  return kSumsPrefixBytes + divide_up(file_bytes, kBlockBytes) * int64_t{sizeof(Hash128)};
}

}  // namespace fsdp
