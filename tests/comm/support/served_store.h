// A TokenStoreServer of this process at a free port of 127.0.0.1, and raw connections to it.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/store/tcp_socket.h"
#include "comm/store/token_store.h"

namespace fsdp::testing {

inline constexpr auto kStoreTimeout = std::chrono::seconds(30);

inline StoreToken token_of(const std::string& key) {
  return {.key = key, .source = "FSDP_JOB_TOKEN_FILE=/of/a/test"};
}

// A connection without the protocol.
class RawConnection {
 public:
  explicit RawConnection(const TcpAddress& address)
      : socket_(connect_within(address, kStoreTimeout).socket) {}

  bool is_open() const { return static_cast<bool>(socket_); }
  // Returns false if the other side has closed the connection.
  bool send(std::string_view bytes) const {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  template <class Message>
  bool send_message(const Message& message) const {
    return send({reinterpret_cast<const char*>(&message), sizeof message});
  }
  // Waits until bytes arrive. Returns nothing if the other side closes the connection.
  std::string receive(size_t at_most = 4096) const {
    std::string bytes(at_most, '\0');
    if (!wait_until_ready(socket_, POLLIN, kStoreTimeout)) return "no answer";
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return bytes;
  }
  // Waits until the other side closes the connection. Returns false if it sends bytes.
  bool is_closed() const { return receive().empty(); }

 private:
  Descriptor socket_;
};

struct ServedStore {
  std::string key = std::string(32, 'k');
  std::shared_ptr<TokenStoreServer> server = std::make_shared<TokenStoreServer>(
      listen_at(find_addresses("127.0.0.1", 0).addresses.front()).socket, key);

  TokenStore::Parts parts(const std::string& token) const {
    return {.host = "127.0.0.1",
            .port = server->address().port(),
            .addresses = {server->address()},
            .token = token_of(token),
            .prefix = "test/",
            .timeout = kStoreTimeout};
  }
  std::unique_ptr<KeyValueStore> connect() const {
    return std::make_unique<TokenStore>(parts(key));
  }
  RawConnection connect_raw() const { return RawConnection(server->address()); }
  // Returns a valid hello of this job.
  StoreHello hello() const {
    StoreHello hello{.nonce = new_nonce()};
    hello.proof = proof_of_hello(key, hello.nonce);
    return hello;
  }
};

}  // namespace fsdp::testing
