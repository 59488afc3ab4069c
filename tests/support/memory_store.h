// A key-value store in this process's memory, for thread ranks.
#pragma once

#include <memory>
#include <string>

#include "comm/store/key_value_store.h"

namespace fsdp::testing {

class MemoryStore {
 public:
  MemoryStore();
  ~MemoryStore();

  // Returns a connection. The store attributes its writes to `owner`.
  std::unique_ptr<KeyValueStore> connect(int owner);
  // Drops all later writes of `owner`, as if the host or the network of `owner` were down.
  void mute(int owner);
  // Ends the store. Each later call of every connection throws CommError.
  void end();
  // Returns the number of keys.
  size_t size() const;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace fsdp::testing
