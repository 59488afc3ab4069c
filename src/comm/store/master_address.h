// The address of rank 0's host, and this host's own address on the route to it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/environment.h"
#include "comm/store/tcp_address.h"

namespace fsdp {

// Throws InvalidArgument (78) unless MASTER_ADDR and MASTER_PORT are set.
void require_master(const LaunchEnvironment& environment);

struct MasterAddress {
  std::string host;  // MASTER_ADDR, or FSDP_ADDRESS
  int port = 0;
  std::vector<TcpAddress> addresses;
};

// Resolves MASTER_ADDR. Tries again until `within` has passed, because some clusters publish the
// names of hosts late. Some systems give their own name a loopback address (127.0.1.1), which other
// hosts cannot reach: FSDP_ADDRESS then replaces it on rank 0's host. MASTER_ADDR may itself be a
// loopback address; then all ranks are on one machine.
// Errors: InvalidArgument (78) if the name has no address, or only loopback addresses and
//   FSDP_ADDRESS is not set.
MasterAddress find_master(const LaunchEnvironment& environment, std::chrono::milliseconds within);

// Returns the address by which other hosts of the job reach this host: FSDP_ADDRESS, or this host's
// own address on the route to MASTER_ADDR ("10.0.0.5"). Names of hosts are not used.
// Errors: InvalidArgument (78) if FSDP_ADDRESS is not an address of this host, if there is no route
//   to MASTER_ADDR, and those of find_master.
std::string route_address(const LaunchEnvironment& environment, std::chrono::milliseconds within);

}  // namespace fsdp
