// A mesh of processes of one host.
#pragma once

#include "base/environment.h"
#include "comm/mesh_parts.h"

namespace fsdp {

// Returns the parts of this process's rank. The ranks were started by fsdp-run, or find each other
// by themselves.
// Effects: blocks until all ranks have arrived.
// Requires: all ranks are of this host.
// Errors: InvalidArgument (78) for an environment that names no job; CommError or InvalidArgument
//   (78) on all ranks if they do not meet (rendezvous/rendezvous.h).
MeshParts shm_mesh(const LaunchEnvironment& environment, const MeshOptions& options);

}  // namespace fsdp
