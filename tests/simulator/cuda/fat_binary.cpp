#include "simulator/cuda/fat_binary.h"

#include <fatbinary_section.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simulator/ptx/program.h"

namespace fsdp::testing::sim {
namespace {

constexpr uint32_t kMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // LZ4, Zstandard

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // size of the entries that follow
};

struct Entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;  // size of the entry without its header
  uint32_t compressed_bytes;
  uint32_t ignored[2];
  uint32_t architecture;
  uint32_t name[2];
  uint64_t flags;
};
static_assert(sizeof(Header) == 16 && offsetof(Entry, architecture) == 28 &&
              offsetof(Entry, flags) == 40);

template <class T>
T read_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

std::string ptx_of(const void* wrapper) {
  const auto outer = read_at<__fatBinC_Wrapper_t>(static_cast<const std::byte*>(wrapper));
  const auto* at = reinterpret_cast<const std::byte*>(outer.data);
  const auto header = read_at<Header>(at);
  if (outer.magic != FATBINC_MAGIC || header.magic != kMagic || header.version != 1) {
    throw ptx::Objection(fmt::format("no fat binary of a known layout (magic {:#x}, version {})",
                                     header.magic, header.version));
  }
  const std::byte* found = nullptr;
  // The driver chooses the newest PTX that this architecture can compile, and so does this loop.
  uint32_t newest = 0;
  at += header.header_bytes;
  for (const std::byte* const end = at + header.bytes; at < end;) {
    const auto entry = read_at<Entry>(at);
    if (entry.kind == kPtx && entry.architecture <= kArchitecture && entry.architecture > newest) {
      newest = entry.architecture;
      found = at;
    }
    at += entry.header_bytes + entry.bytes;
  }
  if (found == nullptr) {
    throw ptx::Objection(
        fmt::format("a fat binary without PTX of compute_{} or before; compile "
                    "with -gencode arch=compute_80,code=[sm_80,compute_80]",
                    kArchitecture));
  }
  const auto entry = read_at<Entry>(found);
  if ((entry.flags & kCompressed) != 0) {
    throw ptx::Objection("a fat binary with compressed PTX; compile with --compress-mode=none");
  }
  const auto* text = reinterpret_cast<const char*>(found + entry.header_bytes);
  return {text, strnlen(text, entry.bytes)};
}

}  // namespace fsdp::testing::sim
