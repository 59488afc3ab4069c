// Read-only views of shared memory that notice a stray write instead of dying of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace fsdp {

struct GuardEntry;

// `bytes` bytes of an open file, from `offset` on.
struct FilePages {
  int file = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
};

// [Note: guarded writes] Shows pages of a file that others write, read-only. Who writes here anyway
// (an operator in place on a peer's weights) gets a private copy of the pages, in which its write
// stays, and goes on: its process does not end by a bare SIGSEGV, and somebody can say what
// happened where. The first GuardedPages of a process installs a handler of SIGSEGV; it hands every
// fault that is not a write to such pages to who handled them before, or to the system.
class GuardedPages {
 public:
  // Maps `pages` at `at`, over what is mapped there. Whole pages, all three.
  // Requires: the file stays open; the memory at `at` belongs to the caller, who gives the
  // addresses
  //   back after this.
  // Errors: DeviceError when the system refuses, or 16,384 of them exist.
  GuardedPages(FilePages pages, std::byte* at);
  GuardedPages(GuardedPages&& other) noexcept;
  GuardedPages& operator=(GuardedPages&&) = delete;
  ~GuardedPages();

  // The offset of the first byte written since the last call, if there was a write; then the file's
  // pages are shown again. Costs next to nothing where there was none.
  // Requires: nobody writes meanwhile. Errors: DeviceError when the system refuses.
  std::optional<int64_t> take_write();

 private:
  GuardEntry* entry_;  // in the process's table, which the handler reads; null: moved away
};

}  // namespace fsdp
