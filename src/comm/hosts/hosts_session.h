// The state that one rank's communicators over several hosts share: connections, and a watch over
// waits for other hosts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/cpu/rank_group.h"
#include "comm/hosts/host_links.h"
#include "comm/job/collective_peers.h"
#include "comm/job/job_member.h"

namespace fsdp {

// [Note: waits for other hosts] A thread that waits for a message blocks inside the transport and
// cannot watch its peers. So a thread of the session watches all such waits: for the job's first
// failure, for ranks that ended, for slow ranks and for the time-out. When the job has failed, this
// thread cancels the messages, and the waiting thread throws the failure. If a connection breaks,
// the waiting thread first gives the control plane time to learn the reason, because the plane's
// text names it: another rank saw how the process ended.
//
// The session's communicators must be destroyed before it.
class HostsSession {
 public:
  // Makes the communicator of a group's ranks on this host, which share memory.
  using MakeInside = std::function<std::unique_ptr<Communicator>(RankGroup group)>;
  struct Parts {
    ControlPlane& plane;  // must outlive the session
    std::shared_ptr<const JobMember> member;
    std::vector<std::string> hosts;  // the name of each rank's host, by rank of the job
    // If it is empty, each rank forms a host of its own, and all data pass through the transport.
    MakeInside make_inside{};
    std::unique_ptr<HostTransport> transport;
    std::unique_ptr<KeyValueStore> store;  // a connection that no other object uses
    std::chrono::milliseconds timeout{30'000};
  };
  // Errors: CommError if the store does not answer.
  explicit HostsSession(Parts parts);
  HostsSession(const HostsSession&) = delete;
  HostsSession& operator=(const HostsSession&) = delete;

  const JobMember& member() const { return *parts_.member; }
  ControlPlane& plane() const { return parts_.plane; }
  // A number that differs between jobs. Messages carry it.
  uint64_t job_id() const { return job_id_; }
  // Returns true if the two ranks of the job share memory, or are the same rank.
  bool share_memory(int rank, int other) const;
  std::unique_ptr<Communicator> make_inside(RankGroup group) const {
    return parts_.make_inside(std::move(group));
  }
  // Returns connections to `ranks`, which are ranks of the job that include this rank.
  // Communicators share the connections of a list of ranks. Collective over these ranks. Errors:
  // CommError.
  std::shared_ptr<HostLinks> links_to(const std::vector<int>& ranks);

  // A collective of one communicator, for failures.
  struct Place {
    const std::string& communicator;  // its name, equal on all its ranks
    const std::vector<int>& ranks;    // ranks of the job
    const CollectiveRecord& record;
  };
  // Posts the collective and compares it with the posts of this host's ranks. Called in the order
  // of the collective sequence. Errors: CommError if the job has failed, or if ranks disagree.
  void post(const Place& place);
  // Errors: CommError if the job has failed.
  void require_working(const Place& place) const;
  // A message of the collective, and the rank of the job at its other end.
  struct Message {
    int peer = 0;
    std::unique_ptr<Transfer> transfer{};
  };
  // Waits until all messages are sent or received. Errors: CommError, the job's first failure.
  void wait(const Place& place, std::span<const Message> messages);
  // Fails the job, and throws the job's first failure.
  [[noreturn]] void fail(const Failure& failure, const Place& place) const;
  // Throws the job's first failure after the connection to `peer` has broken. Waits up to two
  // seconds for the control plane to learn the reason.
  [[noreturn]] void throw_lost(const Place& place, int peer, const std::string& cause) const;

 private:
  struct Waiting {
    const Place* place;
    std::span<const Message> messages;
    PeerWatch watch;
  };
  using WaitingPtr = std::list<Waiting>::iterator;

  // Throws the job's first failure. A rank of the list that has ended fails the job.
  void require_alive(const std::vector<int>& ranks, PeerWatch& watch) const;
  void watch(const std::stop_token& ends);
  void look_at(Waiting& waiting);

  const Parts parts_;
  CollectivePeers peers_;
  const uint64_t job_id_;
  std::mutex connecting_;  // guards links_ and the store
  std::map<std::vector<int>, std::shared_ptr<HostLinks>> links_;
  std::mutex mutex_;  // guards the members below
  std::list<Waiting> waiting_;
  std::condition_variable_any end_;
  std::jthread thread_;  // the last member, because it uses the others
};

}  // namespace fsdp
