// Assembles valid and invalid zip archives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/crc32.h"

namespace fsdp {

struct ZipPart {
  std::string name, bytes;
  uint16_t flags = 0;
  uint16_t method = 0;
  std::optional<uint32_t> check_sum{};  // absent: the correct checksum
  std::string said_name{};  // name in the local header, if it differs from the directory's
};

struct ZipShape {
  bool wide = false;  // 64-bit sizes, as for archives beyond 4 GiB
  std::string comment{};
  uint16_t disk = 0;
};

inline std::string zip_of(const std::vector<ZipPart>& parts, const ZipShape& shape = {}) {
  std::string file, directory;
  const auto put = [](std::string& to, auto value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      to += i < sizeof(uint64_t) ? static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff)
                                 : '\0';
    }
  };
  for (const ZipPart& part : parts) {
    const uint64_t offset = file.size();
    const std::string& said = part.said_name.empty() ? part.name : part.said_name;
    const uint32_t sum = part.check_sum.value_or(crc32(std::as_bytes(std::span(part.bytes))));
    file += "PK\x03\x04";
    put(file, 0, 2);
    put(file, part.flags, 2);
    put(file, part.method, 2);
    put(file, 0, 4);
    put(file, 0, 12);  // the directory has checksum and sizes
    put(file, said.size(), 2);
    put(file, 0, 2);
    file += said + part.bytes;
    directory += "PK\x01\x02";
    put(directory, 0, 4);
    put(directory, part.flags, 2);
    put(directory, part.method, 2);
    put(directory, 0, 4);
    put(directory, sum, 4);
    for (int i = 0; i < 2; ++i) put(directory, shape.wide ? 0xffffffff : part.bytes.size(), 4);
    put(directory, part.name.size(), 2);
    put(directory, shape.wide ? 28 : 0, 2);
    put(directory, 0, 10);
    put(directory, shape.wide ? 0xffffffff : offset, 4);
    directory += part.name;
    if (!shape.wide) continue;
    put(directory, 1, 2);
    put(directory, 24, 2);
    for (int i = 0; i < 2; ++i) put(directory, part.bytes.size(), 8);
    put(directory, offset, 8);
  }
  const uint64_t begin = file.size();
  file += directory;
  if (shape.wide) {
    const uint64_t end = file.size();
    file += "PK\x06\x06";
    put(file, 44, 8);
    put(file, 0, 4);
    put(file, 0, 8);
    for (int i = 0; i < 2; ++i) put(file, parts.size(), 8);
    put(file, directory.size(), 8);
    put(file, begin, 8);
    file += "PK\x06\x07";
    put(file, 0, 4);
    put(file, end, 8);
    put(file, 1, 4);
  }
  file += "PK\x05\x06";
  put(file, shape.disk, 2);
  put(file, 0, 2);
  for (int i = 0; i < 2; ++i) put(file, parts.size(), 2);
  put(file, directory.size(), 4);
  put(file, shape.wide ? 0xffffffff : begin, 4);
  put(file, shape.comment.size(), 2);
  return file + shape.comment;
}

}  // namespace fsdp
