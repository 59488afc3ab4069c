// Checks of a communicator's ranks that do not wait for each other on the host: whether they issue
// the same collectives, and which ranks are missing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/job/call_place.h"
#include "comm/job/control_plane.h"
#include "comm/job/peer_watch.h"

namespace fsdp {

// The peers of a rank as its NCCL or Gloo communicators see them. `ranks` are always a
// communicator's ranks in the job's numbers. Thread-safe, but a rank must call post in the order of
// the collective sequence.
//
// [Note: comparison of collectives of a library] NCCL and Gloo execute every call without checks.
// So ranks that issue different collectives corrupt memory or deadlock. To prevent this, a rank
// posts the record of each collective before it issues the collective (ControlPlane::post). It then
// compares the record with those of the group's ranks that have reached the same place of the
// collective sequence. So the second rank that reaches a place detects a difference before it calls
// the library.
// Posts of ranks on other hosts are not visible at that time. They are compared after the
// collective was issued: [Note: collectives over hosts are compared]. When the time-out has passed,
// the posts of other hosts are requested. Ranks that have not arrived by then are named in the
// error.
class CollectivePeers {
 public:
  // `plane` must outlive this object.
  explicit CollectivePeers(ControlPlane& plane) : plane_(plane) {}

  // Posts a collective that this rank is about to issue. Returns a failure if a peer has posted
  // another collective at the same place.
  std::optional<Failure> post(const std::string& communicator, const std::vector<int>& ranks,
                              const CollectiveRecord& record);
  // Returns a failure if one of `ranks` has ended although the call or collective at `place` still
  // needs that rank. `watch` belongs to the wait at `place`.
  std::optional<Failure> gone(const std::vector<int>& ranks, const CallPlace& place,
                              PeerWatch& watch) const;
  // Returns the ranks that have not reached `sequence` in the collective sequence and are furthest
  // behind. If all of `ranks` have reached it, returns other ranks of the same mesh that have not,
  // because `ranks` may wait for those.
  std::vector<int> behind(const std::vector<int>& ranks, uint64_t sequence) const;
  // Returns the failure of a wait that has lasted longer than `within`: a rank is missing, or has
  // issued another collective. Empty if all ranks have issued the collective, or if that is unknown
  // because the wait is for a call or for a collective without a place in the sequence.
  std::optional<Failure> late(const std::string& communicator, const std::vector<int>& ranks,
                              const CallPlace& place, std::chrono::milliseconds within) const;

 private:
  ControlPlane& plane_;
};

}  // namespace fsdp
