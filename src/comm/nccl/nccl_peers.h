// Checks of an NCCL communicator's ranks: whether they issue the same collectives, and which are
// missing.
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

// The peers of a rank, as its NCCL communicators see them. Used under the mutex of the rank's
// session. `ranks` are a communicator's, in the job's numbers.
//
// [Note: what ranks do on GPUs is compared]
// NCCL executes what it is given: ranks that issue different collectives corrupt memory or block.
// Before a collective is issued its record is posted (ControlPlane::post) and compared with
// those of the group's ranks that have reached the same place of the collective sequence: the
// second rank there sees the difference before NCCL does. Posts of ranks on other hosts are not
// visible then. They are compared a little later ([Note: collectives over hosts are compared]), and
// requested when the time is over. Ranks that have not arrived by then are named.
class NcclPeers {
 public:
  // Holds `plane`, which outlives this.
  explicit NcclPeers(ControlPlane& plane) : plane_(plane) {}

  // Posts a collective that this rank is about to issue. Returns a failure if a peer has posted
  // another one at its place.
  std::optional<Failure> post(const std::string& communicator, const std::vector<int>& ranks,
                              const CollectiveRecord& record);
  // Returns a failure if one of the ranks has ended although `place` needs it. `watch`: of the
  // wait.
  std::optional<Failure> gone(const std::vector<int>& ranks, const CallPlace& place,
                              PeerWatch& watch) const;
  // Returns the ranks that have not reached that place of the collective sequence. If all have,
  // returns other ranks of the same mesh, for which they may wait.
  std::vector<int> behind(const std::vector<int>& ranks, uint64_t sequence) const;
  // Returns the failure of a wait whose time, `within`, is over.
  Failure late(const std::string& communicator, const std::vector<int>& ranks,
               const CallPlace& place, std::chrono::milliseconds within) const;

 private:
  ControlPlane& plane_;
};

}  // namespace fsdp
