// Access to LibTorch's TCP store, which connects ranks of several hosts (comm/store).
#pragma once

#include "comm/store/key_value_store.h"

namespace fsdp {

// Opens the store that torchrun's agent hosts, or hosts a store in this process. A store hosted
// here listens only at the given address.
// Errors: those of OpenStore.
std::unique_ptr<KeyValueStore> open_torch_store(const StoreAddress& address,
                                                std::chrono::milliseconds timeout);

}  // namespace fsdp
