// What the ranks of an NCCL communicator are about to do, and who of them is missing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/job/control_plane.h"
#include "comm/job/peer_watch.h"
#include "comm/nccl/call_watch.h"

namespace fsdp {

// [Note: what ranks do on GPUs is compared]
// NCCL sends what it is told: ranks that issue different collectives corrupt memory or stop. Before
// a collective is issued its record is posted (ControlPlane::post), and held against those of the
// group's ranks that have come to the same place of the host order; whoever comes second sees the
// difference before NCCL does. What ranks of other hosts have posted is not seen then: it is
// compared a little later ([Note: collectives over hosts are compared]), and asked for when the
// time is over. Who has not come by then is named.
//
// Used under the mutex of the rank's session. `ranks` are a communicator's, in the job's numbers.
class NcclPeers {
 public:
  // `plane` lives as long.
  explicit NcclPeers(ControlPlane& plane) : plane_(plane) {}

  // This rank issues it. The failure that a difference is.
  std::optional<Failure> post(const std::string& communicator, const std::vector<int>& ranks,
                              const CollectiveRecord& record);
  // The failure that the end of one of the ranks is, where `place` needs it. `watch`: of the wait.
  std::optional<Failure> gone(const std::vector<int>& ranks, const CallPlace& place,
                              PeerWatch& watch) const;
  // Those that have not come to that place of the host order; where all have, those of the mesh
  // whose order it is, for whom they wait.
  std::vector<int> behind(const std::vector<int>& ranks, uint64_t sequence) const;
  // The time for it, `within`, is over.
  Failure late(const std::string& communicator, const std::vector<int>& ranks,
               const CallPlace& place, std::chrono::milliseconds within) const;

 private:
  ControlPlane& plane_;
};

}  // namespace fsdp
