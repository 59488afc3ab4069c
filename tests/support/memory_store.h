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

  // Returns a connection that counts as `owner`'s.
  std::unique_ptr<KeyValueStore> connect(int owner);
  // Drops all later writes of `owner`, as if its host or its network were down.
  void mute(int owner);
  // Ends the store: each later call of every connection throws CommError.
  void end();
  // Returns the number of keys.
  size_t size() const;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace fsdp::testing
