// Assembles valid and invalid safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

// Returns `size` as 8 little-endian bytes.
std::string little_endian(uint64_t size);
// Returns the size, the header, and `data_bytes` bytes that count up from 0.
std::string file_of(std::string_view header, int64_t data_bytes = 0);
std::span<const std::byte> bytes_of(std::string_view text);

}  // namespace fsdp
