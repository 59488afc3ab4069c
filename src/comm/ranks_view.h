// All ranks' pieces of memory side by side, as Communicator::map_ranks shows them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/write_guard.h"

namespace fsdp {

// Blocks from this size on are whole pages, which the system takes back when they are released.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kLargeBlockBytes = 256 * 1024;
// Whether peers can show a block of their own of so many bytes beside others (map_ranks).
inline bool has_whole_pages(int64_t bytes) {
  return bytes >= kLargeBlockBytes && bytes % kPageBytes == 0;
}

// Read-only. Move-only; an empty view is legal everywhere.
class RanksView {
 public:
  RanksView() = default;
  // Addresses that show nothing, for a device without memory.
  explicit RanksView(Buffer addresses) : addresses_(std::move(addresses)) {}
  // `pieces` in rank order, of the same length. `files` keeps theirs open, shared with the job.
  // Errors: DeviceError when the system refuses.
  RanksView(std::shared_ptr<const void> files, std::span<const FilePages> pieces);

  void* data() const { return addresses_.data(); }
  int64_t bytes() const { return addresses_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(addresses_); }

  // The offset of a byte that this process wrote here since the last call, if it did: the first
  // one of the lowest rank whose piece was written. No rank's memory was changed by it, and the
  // view shows what the ranks have again. [Note: guarded writes] in write_guard.h.
  // Requires: nobody reads or writes the view meanwhile. Cheap where nothing was written.
  std::optional<int64_t> take_write();

 private:
  std::shared_ptr<const void> files_;
  Buffer addresses_;
  std::vector<GuardedPages> pieces_;  // destroyed before the addresses that they lie at
};

}  // namespace fsdp
