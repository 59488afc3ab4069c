// Exchange of texts of any lengths between ranks, over a communicator.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace fsdp {

// Returns the texts of all ranks of `communicator`, in rank order. The contract is that of
// ControlPlane::exchange. Used by control planes that have a communicator on host memory.
std::vector<std::string> exchange_texts(Communicator& communicator, std::string_view text,
                                        const CollectiveTag& tag);

}  // namespace fsdp
