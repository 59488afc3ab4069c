// A mesh whose ranks have one GPU each.
#pragma once

#include <memory>
#include <vector>

#include "comm/mesh_parts.h"
#include "comm/nccl/nccl_session.h"

namespace fsdp {

// Replaces the communicators of one rank's engines and modules by NCCL's; the control communicator
// stays. `parts` are of a mesh of two or more ranks on the host. `session` is of its control plane
// and of this rank's GPU, which becomes its device. Gathers and reductions have an NCCL
// communicator each, on each axis; that of modules is made at first use.
// Requires: collective over all ranks of the mesh; the calling thread is the rank's. Blocks until
//   all communicators are complete and warm.
// Errors: CommError: a rank did not arrive, or died meanwhile, named; DeviceError.
void connect_by_nccl(MeshParts& parts, const std::shared_ptr<NcclSession>& session);

// Does the same for all ranks of a mesh of threads that do not run yet: each rank connects in a
// thread of its own, which ends with the call. Element r of `sessions` is rank r's.
// Errors: those of the first rank that threw.
void connect_by_nccl(std::vector<MeshParts>& ranks,
                     const std::vector<std::shared_ptr<NcclSession>>& sessions);

}  // namespace fsdp
