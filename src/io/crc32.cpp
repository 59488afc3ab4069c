#include "io/crc32.h"

#include <array>
#include <cstring>

namespace fsdp {
namespace {

// kTables[i][b] is the contribution of byte b to the check sum if i bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables(uint32_t polynomial) {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? polynomial : 0U);
    tables[0][byte] = sum;
  }
  for (size_t i = 1; i < tables.size(); ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t sum = tables[i - 1][byte];
      tables[i][byte] = sum >> 8 ^ tables[0][sum & 0xff];
    }
  }
  return tables;
}
constexpr Tables kIso = make_tables(0xedb88320U);
constexpr Tables kCastagnoli = make_tables(0x82f63b78U);

// Handles eight bytes at a time ("slicing by 8"). The eight look-ups do not depend on each other.
uint32_t check_sum(const Tables& tables, std::span<const std::byte> bytes, uint32_t before) {
  uint32_t sum = ~before;
  while (bytes.size() >= 8) {
    uint64_t word = 0;  // little-endian, like all supported hosts
    std::memcpy(&word, bytes.data(), sizeof word);
    word ^= sum;
    sum = 0;
    for (size_t i = 0; i < 8; ++i) sum ^= tables[7 - i][word >> (8 * i) & 0xff];
    bytes = bytes.subspan(8);
  }
  for (const std::byte byte : bytes) {
    sum = sum >> 8 ^ tables[0][(sum ^ static_cast<uint32_t>(byte)) & 0xff];
  }
  return ~sum;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  return check_sum(kIso, bytes, before);
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  return check_sum(kCastagnoli, bytes, before);
}

}  // namespace fsdp
