// A store in this process's memory, for ranks that are threads.
#pragma once

#include <memory>
#include <string>

#include "comm/store/key_value_store.h"

namespace fsdp::testing {

class MemoryStore {
 public:
  MemoryStore();
  ~MemoryStore();

  // Whose connections are `owner`'s.
  std::unique_ptr<KeyValueStore> connect(int owner);
  // What `owner` writes from now on is lost: its host, or the network to it, is gone.
  void mute(int owner);
  // Each later call of every connection throws CommError.
  void end();
  // Of all keys that are there.
  size_t size() const;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace fsdp::testing
