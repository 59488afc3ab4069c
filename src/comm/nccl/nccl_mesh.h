// A mesh whose ranks have a GPU each.
#pragma once

#include <memory>
#include <vector>

#include "comm/mesh_parts.h"
#include "comm/nccl/nccl_session.h"

namespace fsdp {

// What one rank's engines and modules exchange travels between GPUs by NCCL from now on; control
// stays where it is. `parts` are of a mesh of two ranks and more on the host, `session` of its
// control plane and of this rank's GPU, which becomes its device. Gathers and reductions have an
// NCCL communicator each, on each axis; that of modules is made at first use.
// Requires: collective over all ranks of the mesh; the calling thread is the rank's. Blocks until
//   all communicators are there, and warm.
// Errors: CommError, a rank that did not come or died meanwhile, named; DeviceError.
void connect_by_nccl(MeshParts& parts, const std::shared_ptr<NcclSession>& session);

// The same for all ranks of a mesh of threads, which have not been started: each connects in a
// thread that ends with it. Element r of `sessions` is rank r's.
// Errors: what the first rank threw.
void connect_by_nccl(std::vector<MeshParts>& ranks,
                     const std::vector<std::shared_ptr<NcclSession>>& sessions);

}  // namespace fsdp
