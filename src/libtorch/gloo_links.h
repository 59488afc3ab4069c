// Access to Gloo in LibTorch, which connects ranks of several hosts (comm/hosts).
#pragma once

#include "comm/hosts/host_links.h"

namespace fsdp {

// Opens a transport that sends and receives messages by LibTorch's ProcessGroupGloo. It has one
// thread for all connections. From then on this process ignores SIGPIPE, unless the program handles
// it: Gloo also writes to connections whose other end has closed. Also raises the process's limit
// of open files as far as possible. Errors: those of OpenTransport.
std::unique_ptr<HostTransport> open_gloo(const std::string& address);

}  // namespace fsdp
