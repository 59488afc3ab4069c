#include "support/safetensors_bytes.h"

namespace fsdp {

std::string little_endian(uint64_t size) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(size >> (8 * i) & 0xff);
  return bytes;
}

std::string file_of(std::string_view header, int64_t data_bytes) {
  std::string file = little_endian(header.size());
  file += header;
  for (int64_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace fsdp
