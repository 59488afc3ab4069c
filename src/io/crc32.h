// Computes check sums of 32 bits: that of zip archives (ISO 3309, the polynomial 0xedb88320
// reflected), and CRC-32C (Castagnoli, the polynomial 0x82f63b78 reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp {

// Return the check sum of all bytes so far. `before` is the result for the preceding bytes; it is 0
// for the first call.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);   // of zip archives
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);  // Castagnoli's

}  // namespace fsdp
