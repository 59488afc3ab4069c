// A mesh of processes of one host.
#pragma once

#include "base/environment.h"
#include "comm/mesh_parts.h"

namespace fsdp {

// Returns the parts of this process's rank. fsdp-run has started the ranks, or they find each other
// through a rendezvous. All ranks must be on this host. Blocks until all ranks have arrived.
// Errors: InvalidArgument (78) for an environment that names no job. CommError or InvalidArgument
//   (78), on all ranks, if the rendezvous fails (rendezvous/rendezvous.h).
MeshParts shm_mesh(const LaunchEnvironment& environment, const MeshOptions& options);

}  // namespace fsdp
