// Maps shared memory as read-only views. An accidental write to a view is reported to the engine,
// and does not crash the process.
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

// [Note: guarded writes] A read-only view of pages of a file that other processes write. An
// in-place operator on a peer's weights may write to the view. The writer then gets a private copy
// of the pages, the write goes to that copy, and the program continues. So the process does not die
// of SIGSEGV without an explanation: take_write() tells the engine which address was written, and
// the engine names the parameter. The first GuardedPages of a process installs a handler for
// SIGSEGV. The handler handles only writes to such pages. It passes all other faults to the former
// handler, or to the system.
class GuardedPages {
 public:
  // Maps `pages` at `at`, over the existing mapping.
  // Requires: the address, the offset and the size are multiples of a page; the file stays open;
  //   the caller owns the addresses at `at` and unmaps them after this object is destroyed.
  // Errors: DeviceError if the mapping fails, or if 16,384 views exist.
  GuardedPages(FilePages pages, std::byte* at);
  GuardedPages(GuardedPages&& other) noexcept;
  GuardedPages& operator=(GuardedPages&&) = delete;
  ~GuardedPages();

  // If there was a write since the last call, returns the offset of the earliest one, and maps the
  // file's pages again, which discards all writes. Otherwise makes no system call.
  // Requires: no thread writes during the call. Errors: DeviceError if the mapping fails.
  std::optional<int64_t> take_write();

 private:
  GuardEntry* entry_;  // in the process's table, which the handler reads; null if moved from
};

}  // namespace fsdp
