// The check sum of zip archives (ISO 3309, the polynomial 0xedb88320 reflected).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp {

// Returns the check sum of bytes that follow those of `before`; 0 before the first.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace fsdp
