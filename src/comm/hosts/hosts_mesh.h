// A mesh of ranks that compute on the CPUs of several hosts.
#pragma once

#include <string>

#include "comm/hosts/host_links.h"
#include "comm/mesh_parts.h"
#include "comm/store/store_mesh.h"

namespace fsdp {

// Connects a rank that has joined the others through a store, and returns its parts with the
// communicators of engines and modules. `address` is an IP address of this host that the other
// hosts reach. Collective over all ranks.
// Errors: CommError, which fails the job. Also the errors of `open`.
MeshParts hosts_mesh(StoreRanks joined, OpenTransport open, const std::string& address,
                     const MeshOptions& options);

}  // namespace fsdp
