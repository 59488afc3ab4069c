// Access to LibTorch's TCP store, by which torchrun's agent connects ranks of several hosts.
#pragma once

#include "comm/store/key_value_store.h"

namespace fsdp {

// Connects to the store that torchrun's agent serves. Errors: those of OpenStore.
std::unique_ptr<KeyValueStore> open_torch_store(const StoreAddress& address,
                                                std::chrono::milliseconds timeout);

}  // namespace fsdp
