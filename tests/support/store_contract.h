// The contract of KeyValueStore, which every store must pass.
#pragma once

#include <functional>
#include <memory>

#include "comm/store/key_value_store.h"

namespace fsdp::testing {

// Checks the contract on a new, empty store. `connect` returns a connection to this store.
void check_store_contract(const std::function<std::unique_ptr<KeyValueStore>()>& connect);

}  // namespace fsdp::testing
