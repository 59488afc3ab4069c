// A mesh of processes on several hosts.
#pragma once

#include <memory>
#include <vector>

#include "base/environment.h"
#include "comm/job/job_member.h"
#include "comm/mesh_parts.h"
#include "comm/shm/host_ranks.h"
#include "comm/store/key_value_store.h"
#include "comm/store/ranks_of_job.h"
#include "comm/store/store_control_plane.h"

namespace fsdp {

// A rank's membership of a job over a store. Control collectives use the store, too.
struct StoreJob {
  std::shared_ptr<StoreRelay> relay;
  std::shared_ptr<const JobMember> member;
  std::unique_ptr<Communicator> control;
  std::unique_ptr<ControlPlane> plane;  // uses `control`
};
// Makes the membership of this process, which is in the segment parts.control. Blocks until all
// ranks have done so. Errors: those of StoreRelay.
StoreJob join_over_store(StoreRelay::Parts parts, const MeshOptions& options);

// A rank that has joined the other ranks of its job through a store.
struct StoreRanks {
  MeshParts parts;
  std::shared_ptr<const JobMember> member;  // shared with the control plane
  std::vector<PlaceOfRank> places;          // by rank
  std::unique_ptr<KeyValueStore> store;     // a connection for communicators that are added later
  HostRanks host;                           // empty if the ranks of a host share no memory
};

// The memory of the ranks of a host. Ranks on GPUs need no shared memory. If any rank of the job
// has kSeparate, all ranks do.
enum class HostMemory : uint8_t { kSeparate, kShared };

// Joins this process's rank and returns its parts. Their control plane works over `store`, the
// job's (open_job_store). The communicators of engines and modules are missing (connect_by_nccl and
// hosts_mesh add them). Blocks until all ranks have arrived.
// Errors: those of meet_at_store and, if memory is shared, those of ranks_of_host and join_host.
StoreRanks mesh_over_store(std::unique_ptr<KeyValueStore> store,
                           const LaunchEnvironment& environment, const MeshOptions& options,
                           HostMemory memory = HostMemory::kSeparate);

}  // namespace fsdp
