// Access to Gloo in LibTorch, which connects ranks of several hosts (comm/hosts).
#pragma once

#include "comm/hosts/host_links.h"

namespace fsdp {

// Opens a transport that sends and receives messages by LibTorch's ProcessGroupGloo. It has one
// thread for all connections. Errors: those of OpenTransport.
std::unique_ptr<HostTransport> open_gloo(const std::string& address);

}  // namespace fsdp
