// A view of all ranks' pieces of memory side by side, as Communicator::map_ranks returns it.
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

// Blocks of kLargeBlockBytes and more consist of whole pages, which return to the system when they
// are released.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kLargeBlockBytes = 256 * 1024;
// Returns true if a block of this size can be mapped beside others (map_ranks).
inline bool has_whole_pages(int64_t bytes) {
  return bytes >= kLargeBlockBytes && bytes % kPageBytes == 0;
}

// A read-only view. Move-only; an empty view is legal everywhere.
class RanksView {
 public:
  RanksView() = default;
  // Holds addresses without memory, for a device that has none.
  explicit RanksView(Buffer addresses) : addresses_(std::move(addresses)) {}
  // Maps `pieces`, which are in rank order and of equal length. `files` keeps their files open and
  // is shared with the job.
  // Errors: DeviceError when the system refuses.
  RanksView(std::shared_ptr<const void> files, std::span<const FilePages> pieces);

  void* data() const { return addresses_.data(); }
  int64_t bytes() const { return addresses_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(addresses_); }

  // Returns the offset of a byte that this process wrote here since the last call, if it did: the
  // first one of the lowest rank whose piece was written. The write changed no rank's memory, and
  // the view shows the ranks' data again. [Note: guarded writes] in write_guard.h.
  // Requires: no thread reads or writes the view meanwhile. Cheap if nothing was written.
  std::optional<int64_t> take_write();

 private:
  std::shared_ptr<const void> files_;
  Buffer addresses_;
  std::vector<GuardedPages> pieces_;  // destroyed before their addresses
};

}  // namespace fsdp
