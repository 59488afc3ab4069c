// A mesh whose ranks have one GPU each.
#pragma once

#include <memory>
#include <vector>

#include "comm/mesh_parts.h"
#include "comm/nccl/nccl_session.h"

namespace fsdp {

// Replaces the communicators of one rank's engines and modules by NCCL communicators. The control
// communicator is not replaced. `parts` must be those of at least two ranks, from a back-end that
// works in host memory. `session` must have the control plane of `parts` and this rank's GPU, which
// becomes the device of `parts`. Each axis has two NCCL communicators: one for gathers and one for
// reductions. The communicator of modules is made at first use. Blocks until all communicators are
// complete and have run a first collective.
// Requires: collective over all ranks of the mesh. The calling thread must be the rank's thread.
// Errors: CommError, which names the rank, if a rank did not arrive or died meanwhile. DeviceError.
void connect_by_nccl(MeshParts& parts, const std::shared_ptr<NcclSession>& session);

// Connects all ranks of a mesh of threads. The ranks must not run yet: during the call each rank
// connects in a temporary thread. Element r of `sessions` belongs to rank r. Errors: those of the
// first rank that threw.
void connect_by_nccl(std::vector<MeshParts>& ranks,
                     const std::vector<std::shared_ptr<NcclSession>>& sessions);

}  // namespace fsdp
