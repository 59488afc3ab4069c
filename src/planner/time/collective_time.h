// Computes the duration of collectives.
#pragma once

#include <fsdp/rates.h>

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

// A group of ranks and its place on hosts.
struct TimedGroup {
  int ranks = 1;
  int hosts = 1;
  int ranks_of_host = 1;    // ranks of the job on each host
  bool by_network = false;  // HostsCommunicator: only bytes to other hosts use the network
};

struct CollectiveTime {
  double latency_ns = 0;
  double transfer_ns = 0;
  bool shares_wire = true;  // the transfer shares the bandwidth of the wire with others
  double cores = 0;         // part of transfer_ns in which the rank uses a core
  int64_t ring_steps = 0;
  bool net_limits = false;  // the link between hosts limits the bandwidth
};

// Returns the duration of a collective on n ranks of k hosts, for a tensor of S bytes:
//   latency = base + (n - k) · step(host) + (k - 1) · step(net)
//   transfer = S (n - 1) / n ÷ min(host's, net's bandwidth)
// An all_reduce takes two rings, and a broadcast sends S bytes. This is NCCL's model of a ring
// (src/graph/tuning.cc). If a group has only some ranks of each host, it has their part of the
// hosts' network, because the other groups communicate at the same time. Between CPUs of several
// hosts, the bytes inside a host and those to other hosts are sent one after the other.
// If the rates have measured times of gathers and reductions between ranks of a host, the result is
// such a time, in which the rank's streams share only its cores.
// Requires: the rates have the links that the group uses.
CollectiveTime collective_time(const Rates& rates, const TimedGroup& group, Operation operation,
                               std::span<const CollectivePart> parts);

}  // namespace fsdp
