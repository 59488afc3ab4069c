// The ranks' own key-value store. It admits connections of processes that have the job's token.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "comm/store/key_value_store.h"
#include "comm/store/store_message.h"
#include "comm/store/store_token.h"
#include "comm/store/tcp_address.h"
#include "comm/store/token_store_server.h"

namespace fsdp {

// A connection to a TokenStoreServer: [Note: the protocol of the store]. One request is one message
// and one reply, also for many keys. A wait is a request that the server answers when the keys
// exist. Keys have at most 1 KiB, and values at most 64 MiB. Only the start of a connection proves
// the token. Later messages are neither encrypted nor signed, so a program that can change packets
// on the network can read and change keys: the network between the hosts must be private.
class TokenStore final : public KeyValueStore {
 public:
  struct Parts {
    std::string host;  // of the server, for messages
    int port = 0;
    std::vector<TcpAddress> addresses;  // of the server; the first one that answers is used
    StoreToken token;
    std::string prefix;                 // of all keys
    std::chrono::milliseconds timeout;  // of each reply, in addition to the time of a wait
    // The server, if this process serves the store. All its connections share the server, which
    // ends with the last of them.
    std::shared_ptr<TokenStoreServer> server{};
  };

  // Connects. Tries again until `timeout` has passed, because the server may start later.
  // Errors: InvalidArgument (78) if the server refuses the token, if the process that listens does
  //   not know the token, or if no store answers within the time-out.
  explicit TokenStore(Parts parts);

  void set(const std::string& key, std::string_view value) override;
  std::string set_once(const std::string& key, std::string_view value) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool has(const std::string& key) override;
  std::vector<bool> have(const std::vector<std::string>& keys) override;
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds at_most) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;
  void forget(const std::string& key) override;
  // Forgets all keys that begin with this text.
  void forget_all(const std::string& beginning);
  std::unique_ptr<KeyValueStore> connect_again() override;

 private:
  struct Request {
    StoreRequest kind;
    std::vector<std::string> keys;
    std::optional<std::string_view> value{};
    int64_t number = 0;
    std::chrono::milliseconds wait{0};  // the server may reply so much later
  };
  // Sends a request and returns the reply, which has the kind kDone or kTimeOut.
  StoreMessage ask(Request request);
  StoreMessage exchange(StoreRequest kind, int64_t number,
                        const std::vector<std::string_view>& texts,
                        std::chrono::milliseconds at_most);
  void send(std::string_view bytes);
  [[noreturn]] void lose(const std::string& cause);

  Parts parts_;
  Descriptor socket_;  // none after an error
};

}  // namespace fsdp
