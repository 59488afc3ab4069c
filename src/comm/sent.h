// Access to the elements that a part sends and receives. Those that it sends are contiguous or
// consist of several runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace fsdp {

inline int64_t bytes_of(const CollectivePart& part, int64_t numel) {
  return numel * size_of(part.dtype);
}
// Returns the address at which the part receives an element.
inline std::byte* received(const CollectivePart& part, int64_t element) {
  return static_cast<std::byte*>(part.recv) + bytes_of(part, element);
}

// Returns the address of elements [element, element + numel), or null if they are not contiguous.
const std::byte* sent_together(const CollectivePart& part, int64_t element, int64_t numel);
// Copies elements [element, element + numel) to `to`. Skips elements that are already at their
// destination.
void copy_sent(const CollectivePart& part, int64_t element, int64_t numel, void* to);
// Appends the runs of elements [element, element + numel) to `runs`. A run that begins where the
// last run ends is merged with it.
void append_runs(const CollectivePart& part, int64_t element, int64_t numel,
                 std::vector<SendRun>& runs);

}  // namespace fsdp
