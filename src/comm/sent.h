// Access to the elements that a part sends, contiguous or in runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace fsdp {

// Returns the address of elements [element, element + numel) if they are contiguous, else null.
const std::byte* sent_together(const CollectivePart& part, int64_t element, int64_t numel);
// Copies these elements to `to`, except those that are there already.
void copy_sent(const CollectivePart& part, int64_t element, int64_t numel, void* to);

}  // namespace fsdp
