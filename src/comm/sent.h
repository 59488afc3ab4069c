// Access to the elements that a part sends. They are contiguous or consist of several runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace fsdp {

// Returns the address of elements [element, element + numel), or null if they are not contiguous.
const std::byte* sent_together(const CollectivePart& part, int64_t element, int64_t numel);
// Copies elements [element, element + numel) to `to`. Skips elements that are already at their
// destination.
void copy_sent(const CollectivePart& part, int64_t element, int64_t numel, void* to);

}  // namespace fsdp
