// A store of short texts that all processes of a job reach: how ranks of several hosts find and
// hear each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// One connection to it. Not thread-safe. Errors of all: CommError when the store is gone.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;

  virtual void set(const std::string& key, std::string_view value) = 0;
  // Sets it unless it is there. What it is then.
  virtual std::string set_once(const std::string& key, std::string_view value) = 0;
  // Adds to a number, which is 0 at first. What it is then.
  virtual int64_t add(const std::string& key, int64_t value) = 0;
  virtual bool has(const std::string& key) = 0;
  // False: they have not all come within that time.
  virtual bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds at_most) = 0;
  // Requires: they are there.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  virtual void forget(const std::string& key) = 0;
  // Another connection to the same, for another thread.
  virtual std::unique_ptr<KeyValueStore> connect_again() = 0;
};

struct StoreAddress {
  std::string host;
  int port = 0;
  bool is_server = false;  // this process serves it; else it listens there already, or will
  std::string prefix;      // of all keys
};

// Errors: InvalidArgument (78) with address and remedy: no such host, somebody else listens there,
//   nobody does within `timeout`.
using OpenStore = std::unique_ptr<KeyValueStore> (*)(const StoreAddress& address,
                                                     std::chrono::milliseconds timeout);
}  // namespace fsdp
