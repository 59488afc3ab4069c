// The keys and values of the ranks' own store, and the waits for keys. Without sockets and threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/store/store_message.h"

namespace fsdp {

class StoreKeys {
 public:
  using Clock = std::chrono::steady_clock;
  // A reply shares its values with the table, because each rank may read the values of all ranks.
  using Value = std::shared_ptr<const std::string>;
  struct Reply {
    StoreReply kind = StoreReply::kDone;
    std::vector<Value> texts{};
  };
  // A client that waited, and its reply.
  struct EndedWait {
    uint64_t client;
    Reply reply;
  };

  // Serves a request of `client`, a number that the caller chooses. Returns nothing if the client
  // must wait. It may then not ask again before its wait has ended. Errors: CommError if the
  // request is invalid.
  std::optional<Reply> serve(uint64_t client, StoreMessage request, Clock::time_point now);
  // Returns the waits that have ended by keys that were set, or at their deadline.
  std::vector<EndedWait> take_ended(Clock::time_point now);
  // Drops the client's wait, if there is one.
  void drop(uint64_t client);
  // Returns the first deadline of a wait.
  std::optional<Clock::time_point> next_deadline() const;
  size_t size() const { return values_.size(); }

 private:
  // A wait is listed under the first of its keys that does not exist (at), so that setting a key
  // visits only waits that need it.
  struct Wait {
    std::vector<std::string> keys;
    size_t at;
    Clock::time_point deadline;
  };

  void put(const std::string& key, std::string value);
  size_t first_missing(const std::vector<std::string>& keys, size_t from) const;
  Reply add(const std::string& key, int64_t summand);
  Reply get(const std::vector<std::string>& keys) const;
  std::optional<Reply> wait(uint64_t client, StoreMessage request, Clock::time_point now);
  void wake(const std::string& key);
  void end(uint64_t client, StoreReply kind);

  std::unordered_map<std::string, Value> values_;
  std::unordered_map<uint64_t, Wait> waits_;  // by client
  std::unordered_map<std::string, std::set<uint64_t>> waiting_for_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
  std::vector<EndedWait> ended_;
};

}  // namespace fsdp
