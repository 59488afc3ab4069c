// What a part of a collective sends, in one place or in runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace fsdp {

// Where elements [element, element + numel) lie together; null if they are cut.
const std::byte* sent_together(const CollectivePart& part, int64_t element, int64_t numel);
// Copies them. Nothing is done if they lie at `to` already.
void copy_sent(const CollectivePart& part, int64_t element, int64_t numel, void* to);

}  // namespace fsdp
