// A view of all ranks' pieces of memory side by side. Communicator::map_ranks returns it.
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

// Blocks of at least kLargeBlockBytes consist of whole pages, which return to the system when the
// block is released.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kLargeBlockBytes = 256 * 1024;
// Returns true if a block of this size can be mapped next to other blocks (map_ranks).
inline bool has_whole_pages(int64_t bytes) {
  return bytes >= kLargeBlockBytes && bytes % kPageBytes == 0;
}

// A read-only view. Move-only. A view may be empty.
class RanksView {
 public:
  RanksView() = default;
  // Makes a view of addresses without memory, for a device that has no memory (MetaDevice).
  explicit RanksView(Buffer addresses) : addresses_(std::move(addresses)) {}
  // Maps `pieces`, which must be in rank order and have equal lengths. `files` keeps the files of
  // the pieces open and is shared with the job. Errors: DeviceError if the system cannot map the
  // pieces.
  RanksView(std::shared_ptr<const void> files, std::span<const FilePages> pieces);

  void* data() const { return addresses_.data(); }
  int64_t bytes() const { return addresses_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(addresses_); }

  // Returns the offset of a byte of the view that this process has written since the last call.
  // Empty if there is none. If several bytes were written, the result is the lowest offset. The
  // write has not changed any rank's memory. The view shows the ranks' data again afterwards. See
  // [Note: guarded writes] in write_guard.h. No thread may read or write the view during the call.
  // Cheap if nothing was written.
  std::optional<int64_t> take_write();

 private:
  std::shared_ptr<const void> files_;
  Buffer addresses_;
  std::vector<GuardedPages> pieces_;  // declared last, so destroyed before their addresses
};

}  // namespace fsdp
