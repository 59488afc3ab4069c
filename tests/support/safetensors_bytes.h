// Safetensors files put together by hand, right and wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

// 8 bytes little-endian of `size`.
std::string little_endian(uint64_t size);
// Size, header, and `data_bytes` bytes counting up from 0.
std::string file_of(std::string_view header, int64_t data_bytes = 0);
std::span<const std::byte> bytes_of(std::string_view text);

}  // namespace fsdp
