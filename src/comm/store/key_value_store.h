// A key-value store of short texts that all processes of a job can access. Ranks on several hosts
// find each other and communicate through it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A connection to the store. Not thread-safe. Errors of all functions: CommError if the store does
// not answer any more, or if `add` finds a value that is not a number.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;

  virtual void set(const std::string& key, std::string_view value) = 0;
  // Sets the key if it does not exist. Returns the value that the key has then.
  virtual std::string set_once(const std::string& key, std::string_view value) = 0;
  // Adds `value` to the number at `key`, or to 0 if the key does not exist. Stores and returns the
  // sum.
  virtual int64_t add(const std::string& key, int64_t value) = 0;
  virtual bool has(const std::string& key) = 0;
  // Returns has() of each key.
  virtual std::vector<bool> have(const std::vector<std::string>& keys) {
    std::vector<bool> have;
    for (const std::string& key : keys) have.push_back(has(key));
    return have;
  }
  // Waits until all keys exist. Returns false if they do not exist after `at_most`.
  virtual bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds at_most) = 0;
  // Returns the values of the keys. Errors: CommError if a key does not exist.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  virtual void forget(const std::string& key) = 0;
  // Opens another connection to the same store, for another thread.
  virtual std::unique_ptr<KeyValueStore> connect_again() = 0;
};

// The address of a store.
struct StoreAddress {
  std::string host;
  int port = 0;
  std::string prefix;  // of all keys
};

// Connects to the store that a launcher's agent serves. Errors: InvalidArgument (78), with address
// and remedy, if the host does not exist, if another program listens at the address, or if no
// program listens there within `timeout`.
using OpenStore = std::unique_ptr<KeyValueStore> (*)(const StoreAddress& address,
                                                     std::chrono::milliseconds timeout);
}  // namespace fsdp
