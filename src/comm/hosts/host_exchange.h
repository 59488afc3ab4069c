// The messages of one collective between a rank and the ranks with its number on other hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/hosts/hosts_session.h"

namespace fsdp {

// The rank's place among the ranks of a communicator: [Note: two levels] in hosts_communicator.h.
struct HostPlace {
  int hosts = 1;          // H
  int ranks_of_host = 1;  // k
  int host = 0;           // index of this rank's host
  int number = 0;         // index of this rank on its host

  // Returns the rank of the communicator that has this rank's number on host `other`.
  int rank_on(int other) const { return other * ranks_of_host + number; }
};

// The exchange of one collective. The constructor sends the collective's record to the other hosts.
// Before the first message with data, the records of the other hosts are compared, because a
// message must have the length that its receiver expects. Used by one thread.
class HostExchange {
 public:
  using Messages = std::vector<HostsSession::Message>;
  // `column` has, by host, the rank of the job that has this rank's number. `channel` makes the
  // tags of messages differ from those of other communicators. `number` counts the collectives of
  // the communicator. All arguments must outlive the
  // exchange.
  HostExchange(HostsSession& session, const HostsSession::Place& place, HostLinks& links,
               const std::vector<int>& column, int host, int channel, uint64_t number);
  // After an error the destructor abandons messages that are in flight.
  ~HostExchange() = default;
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  const CollectiveRecord& record() const { return place_.record; }

  // Waits for the records of the other hosts and compares them. Further calls do nothing. Errors:
  // CommError, which names both sides, if the records differ. All ranks find the same difference.
  void agree();
  // Begins to send to, or to receive from, the rank with this rank's number on host `other`. Adds
  // the message to `messages`. Both sides must name the messages between them in the same order.
  // Does nothing for 0 bytes.
  void send(int other, const void* data, int64_t bytes, Messages& messages);
  void receive(int other, void* data, int64_t bytes, Messages& messages);
  // Waits for the messages and removes them from the list. Errors: CommError, the job's failure.
  void wait(Messages& messages);

 private:
  // A record with the identity of its job and communicator.
  struct Frame {
    uint64_t job = 0;
    PostedCollective posted{};
  };

  template <class Begin>
  void begin(int other, Messages& messages, const Begin& begin);
  void require_equal(const Frame& first, const Frame& theirs, int rank) const;

  HostsSession& session_;
  const HostsSession::Place place_;
  HostLinks& links_;
  const std::vector<int>& column_;
  const int host_;
  const uint64_t number_;
  const uint32_t tag_;
  const Frame own_;
  std::vector<Frame> frames_by_host_;
  Messages frames_;
  bool has_agreed_ = false;
};

}  // namespace fsdp
