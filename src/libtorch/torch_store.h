// LibTorch's TCP store, by which ranks of several hosts meet (comm/store).
#pragma once

#include "comm/store/key_value_store.h"

namespace fsdp {

// The store that torchrun's agent serves, or one that this process serves. It listens on the
// address alone that is given.
// Errors: as OpenStore.
std::unique_ptr<KeyValueStore> open_torch_store(const StoreAddress& address,
                                                std::chrono::milliseconds timeout);

}  // namespace fsdp
