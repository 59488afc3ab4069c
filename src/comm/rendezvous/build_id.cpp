#include "comm/rendezvous/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

#include "comm/job/fingerprint.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

std::string in_hexadecimal(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// Returns the GNU build id in the ELF notes [data, data + size). Empty if there is none.
std::string find_in_notes(const char* data, size_t size, size_t alignment) {
  // In the notes, names and contents are padded to the alignment of the segment.
  const auto padded = [&](size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, data + at, sizeof note);
    const char* name = data + at + sizeof note;
    const char* content = name + padded(note.n_namesz);
    const bool is_id =
        note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0;
    if (is_id) {
      return in_hexadecimal({reinterpret_cast<const unsigned char*>(content), note.n_descsz});
    }
    at += sizeof note + padded(note.n_namesz) + padded(note.n_descsz);
  }
  return {};
}

// Finds the build id of the first loaded object. dl_iterate_phdr calls it.
int look_into(dl_phdr_info* info, size_t, void* found) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    auto* id = static_cast<std::string*>(found);
    // Notes are aligned to 8 bytes in a segment with that alignment, otherwise to 4 bytes.
    *id = find_in_notes(notes, segment.p_memsz, segment.p_align < 8 ? 4 : 8);
    if (!id->empty()) break;
  }
  // The first object is the program itself, so 1 ends dl_iterate_phdr.
  return 1;
}

std::string hash_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<uint64_t> block(1 << 16);
  uint64_t hash = 0;
  int64_t bytes = 0;
  while (file) {
    std::fill(block.begin(), block.end(), 0);  // the rest of a short last block is 0
    file.read(reinterpret_cast<char*>(block.data()), block.size() * sizeof(uint64_t));
    bytes += file.gcount();
    for (const uint64_t word : block) hash = mix(hash, word);
  }
  if (bytes == 0 || file.bad()) {
    throw IoError(ExitCode::kIoError, {.what = "this program's own file cannot be read",
                                       .where = "/proc/self/exe",
                                       .hint = "mount /proc"});
  }
  return fmt::format("file {:016x} of {} bytes", hash, bytes);
}

}  // namespace

std::string build_id() {
  std::string id;
  // Try the linker's build id first, because it costs nothing. A hash of a large program would
  // delay each start.
  dl_iterate_phdr(look_into, &id);
  return id.empty() ? hash_of_program() : id;
}

}  // namespace fsdp
