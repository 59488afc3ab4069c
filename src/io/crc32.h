// Computes the check sum of zip archives (ISO 3309, the polynomial 0xedb88320 reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp {

// Returns the check sum of all bytes so far. `before` is the result for the preceding bytes; it is
// 0 for the first call.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace fsdp
