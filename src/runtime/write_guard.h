// Read-only views of shared memory that report a stray write instead of crashing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace fsdp {

struct GuardEntry;

// A range of an open file: `bytes` bytes from `offset` on.
struct FilePages {
  int file = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
};

// [Note: guarded writes] A read-only view of pages of a file that others write. A write to it (an
// in-place operator on a peer's weights) gets a private copy of the pages, in which it stays, and
// the program goes on. So the process does not end by a bare SIGSEGV, and take_write() lets the
// engine name the parameter. The first GuardedPages of a process installs a handler of SIGSEGV. It
// passes every fault that is not a write to such pages to the former handler, or to the system.
class GuardedPages {
 public:
  // Maps `pages` at `at`, over the mapping there. Address, offset and size are multiples of a page.
  // Requires: the file stays open; the caller owns the addresses at `at`, and unmaps them after
  //   this object is destroyed.
  // Errors: DeviceError if the system refuses, or if 16,384 of them exist.
  GuardedPages(FilePages pages, std::byte* at);
  GuardedPages(GuardedPages&& other) noexcept;
  GuardedPages& operator=(GuardedPages&&) = delete;
  ~GuardedPages();

  // Returns the offset of the first byte written since the last call, if there was a write, and
  // maps the file's pages again. Costs next to nothing if there was none.
  // Requires: no thread writes meanwhile. Errors: DeviceError if the system refuses.
  std::optional<int64_t> take_write();

 private:
  GuardEntry* entry_;  // in the process's table, which the handler reads; null: moved away
};

}  // namespace fsdp
