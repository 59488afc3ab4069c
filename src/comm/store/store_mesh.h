// A mesh of processes on several hosts.
#pragma once

#include <memory>

#include "base/environment.h"
#include "comm/mesh_parts.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// This process's rank, with a control plane over the store at MASTER_ADDR and MASTER_PORT, which
// rank 0 serves unless its launcher's agent does. What engines and modules exchange is left out:
// collectives between hosts are those of GPUs (connect_by_nccl).
// Effects: blocks until all ranks have come.
// `open` opens it; null: this program has none.
// Errors: InvalidArgument (78) without an address or `open`; those of `open` and meet_at_store.
MeshParts store_mesh(const LaunchEnvironment& environment, const MeshOptions& options,
                     OpenStore open);

// The same over a store that is open.
MeshParts mesh_over_store(std::unique_ptr<KeyValueStore> store,
                          const LaunchEnvironment& environment, const MeshOptions& options);

}  // namespace fsdp
