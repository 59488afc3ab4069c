// LibTorch's TCP store, the connection between ranks of several hosts (comm/store).
#pragma once

#include "comm/store/key_value_store.h"

namespace fsdp {

// Opens the store that torchrun's agent serves, or one that this process serves. The latter listens
// at the given address only.
// Errors: as OpenStore.
std::unique_ptr<KeyValueStore> open_torch_store(const StoreAddress& address,
                                                std::chrono::milliseconds timeout);

}  // namespace fsdp
