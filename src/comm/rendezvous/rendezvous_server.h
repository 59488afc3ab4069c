// Rank 0's side of the rendezvous of a job's processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "comm/descriptor.h"
#include "comm/job/job_memory.h"
#include "comm/rendezvous/rendezvous_messages.h"

namespace fsdp {

// A server that listens in a private directory, and removes it when destroyed.
class RendezvousServer {
 public:
  // Listens. `lock` is the directory's, held as long as the server lives.
  RendezvousServer(const LaunchEnvironment& environment, std::string directory, Descriptor lock);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // Waits for all ranks, creates the job's files and sends them to all.
  // Errors: CommError (78), reported to all that arrived: a rank missing after `timeout`, a rank
  //   twice, WORLD_SIZE differing.
  JobDescriptors serve(std::chrono::milliseconds timeout);
  // Starts a thread that rejects late processes for ten seconds. As the ranks are complete, a late
  // process is a second one with some rank, and the whole job (`memory`) fails with it: it is
  // unknown which one was meant.
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

  int world_size_;
  std::string directory_;
  std::string socket_path_;
  Descriptor lock_;
  Descriptor listener_;
  std::vector<int32_t> pids_;  // by rank; 0: has not arrived
  std::vector<Client> clients_;
  std::jthread watcher_;  // last: it ends before the members that it uses
};

}  // namespace fsdp
