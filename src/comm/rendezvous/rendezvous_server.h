// The server of the rendezvous of a job's processes on one host. The host's first rank runs it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "comm/job/job_memory.h"
#include "comm/rendezvous/rendezvous_messages.h"

namespace fsdp {

// A server that listens in a private directory. The destructor removes the directory.
class RendezvousServer {
 public:
  // Listens for the ranks `local` of this host. The first of them is this process. `lock` is the
  // lock of the directory. The server holds it until it is destroyed.
  RendezvousServer(int world_size, RankRange local, std::string directory, Descriptor lock);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // Waits for all ranks of the host, creates the host's files and sends their descriptors to these
  // ranks.
  // Errors: CommError (78), which is also reported to all ranks that arrived, in these cases: a
  //   rank is missing after `timeout`, a rank arrives twice, or WORLD_SIZE or `local` differs.
  JobDescriptors serve(std::chrono::milliseconds timeout);
  // Starts a thread that rejects late processes for ten seconds. All ranks have arrived already. So
  // a late process has the same rank as another process, and it is unknown which of the two is the
  // right one. Therefore the whole job (`memory`) fails.
  void refuse_latecomers(std::shared_ptr<const JobMemory> memory);

 private:
  struct Client {
    Descriptor socket;
    JoinRequest request;
  };

  std::optional<Client> accept_client(std::chrono::milliseconds at_most) const;
  std::optional<Refusal> admit_all(std::chrono::steady_clock::time_point deadline,
                                   std::chrono::milliseconds timeout);
  std::optional<Refusal> admit(const JoinRequest& request);
  Refusal missing(std::chrono::milliseconds timeout) const;
  void hand_out(const JobDescriptors& files) const;
  void watch(const std::stop_token& stop, const JobMemory& memory);
  void refuse_latecomer(const Client& client, const JobMemory& memory);

  int32_t& pid_of(int rank) { return pids_[static_cast<size_t>(rank - local_.begin)]; }

  int world_size_;
  RankRange local_;
  std::string directory_;
  std::string socket_path_;
  Descriptor lock_;
  Descriptor listener_;
  std::vector<int32_t> pids_;  // of the local ranks; 0: the rank has not arrived
  std::vector<Client> clients_;
  std::jthread watcher_;  // declared last: it ends before the members that it uses are destroyed
};

}  // namespace fsdp
