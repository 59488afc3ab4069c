// What the copies of one rank's mesh share.
#pragma once

#include <fsdp/mesh.h>

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm/cpu/job_member.h"
#include "comm/host_order.h"
#include "comm/rendezvous/rendezvous_server.h"
#include "runtime/stream.h"

namespace fsdp {

struct OwnStreams {
  std::unique_ptr<CpuStream> gather, reduce;
};

struct Mesh::State {
  std::shared_ptr<const JobMember> job;
  std::array<std::unique_ptr<Communicator>, kChannels> channels;  // by Channel
  std::unique_ptr<Communicator> alone;                            // for the axis of size one
  int local_rank = 0;
  std::string host;
  std::function<void(const ErrorText& warning)> on_warning;
  HostOrder order;
  std::mutex streams_mutex;
  std::weak_ptr<OwnStreams> streams;  // kept alive by engines
  std::weak_ptr<void> engine_state;
  std::unique_ptr<RendezvousServer> rendezvous_server;  // on rank 0 alone, without a launcher
};

// The name of this host, as the system has it.
std::string host_name();

}  // namespace fsdp
