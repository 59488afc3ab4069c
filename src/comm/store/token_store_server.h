// The server of the ranks' own store.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/descriptor.h"
#include "comm/store/store_connection.h"
#include "comm/store/store_keys.h"
#include "comm/store/tcp_address.h"

namespace fsdp {

// [Note: strangers at the store] Until a connection has shown that it has the token, it belongs to
// a stranger. A stranger gets a place for a fixed number of bytes, and for at most five seconds. A
// silent stranger (without a valid hello) loses its place to the ninth one. A rank sends its hello
// with the connection, so it is silent only for the time of a few accepts, and it connects again if
// it loses its place. So a flood of silent strangers keeps no rank out. A connection with a valid
// hello has one of 256 places, because all ranks of a large job connect at once. If all these
// places are in use, new connections wait until a place is free, or until one of them has been in
// use for a second.

// A thread that serves keys to all clients that have the token. It never blocks on a client, and
// serves one request of a client at a time, so slow clients delay only themselves. Its memory is
// that of the keys and, for each client, one request and the head of one reply.
class TokenStoreServer {
 public:
  static constexpr size_t kMostSilent = 8;
  static constexpr size_t kMostChallenged = 256;
  static constexpr auto kStrangerTime = std::chrono::milliseconds(5000);

  // Numbers since the start. They are for tests and measurements.
  struct Counts {
    std::atomic<int64_t> accepted, admitted, dropped;  // connections; dropped before admission
    std::atomic<int64_t> open;                         // connections now
    std::array<std::atomic<int64_t>, kStoreRequests> requests;  // by kind, from kSet on
    std::atomic<int64_t> bytes_in, bytes_out;                   // of admitted connections
    int64_t of(StoreRequest kind) const { return requests[static_cast<size_t>(kind) - 1]; }
  };

  // Serves at `listener`, a socket that listens. `key` is the token.
  TokenStoreServer(Descriptor listener, std::string key,
                   std::chrono::milliseconds stranger_time = kStrangerTime);
  // Closes all connections.
  ~TokenStoreServer();
  TokenStoreServer(const TokenStoreServer&) = delete;
  TokenStoreServer& operator=(const TokenStoreServer&) = delete;

  // The address at which the server listens.
  TcpAddress address() const { return address_of_socket(listener_.get()); }
  const Counts& counts() const { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    explicit Client(Descriptor socket) : connection(std::move(socket)) {}
    StoreConnection connection;
    Clock::time_point since{};  // when the connection was accepted
    uint32_t events = 0;        // for which the poll waits
    bool waits = false;         // for keys
    // The client's place in silent_ or challenged_, until it is admitted.
    std::list<uint64_t>::iterator place{};
  };

  void run();
  void turn();
  int time_to_next() const;
  void accept_all();
  bool accept_one();
  void pause_accepts();
  void make_room();
  void handle(uint64_t id, uint32_t events);
  void receive(uint64_t id, Client& client);
  void move_place(Client& client, StoreConnection::Stage before);
  void serve(uint64_t id, Client& client);
  void reply(uint64_t id, Client& client, const StoreKeys::Reply& reply);
  void end_waits();
  void end_strangers();
  void watch(uint64_t id, Client& client);
  void drop(uint64_t id);
  std::list<uint64_t>& places_of(StoreConnection::Stage stage);

  const Descriptor listener_;
  const std::string key_;
  const std::chrono::milliseconds stranger_time_;
  const Descriptor epoll_, wake_;
  StoreKeys keys_;
  std::unordered_map<uint64_t, Client> clients_;
  std::list<uint64_t> silent_, challenged_;  // strangers, the oldest first
  uint64_t next_id_ = 2;                     // 0 and 1 are wake_ and listener_
  Clock::time_point accepts_from_{};         // the end of a pause; the epoch: no pause
  Counts counts_{};
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // declared last: it uses all other members
};

}  // namespace fsdp
