// The control plane: how the ranks of a job agree, fail and end together. It does everything
// between ranks except collectives on streams.
#pragma once

#include <fsdp/mesh.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/failure.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// One rank's control plane. It works in host memory and needs no device, also if collectives run
// between devices. Implementations: ranks of one host that share memory
// (job/segment_control_plane.h), ranks of several hosts (store/store_control_plane.h), one rank of
// a simulated world (simulated/simulated_control_plane.h), the ranks of a part of a mesh
// (job/part_control_plane.h).
//
// Its destruction is this rank's end: the others learn that it finished or, if an exception is
// leaving the scope, that it gave up. Communicators are destroyed before the plane that they belong
// to. As their destruction may wait for other ranks, leave() reports the same before.
// Thread-safe, except exchange and agree: one thread of a rank at a time.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Maps a rank of the mesh to its number in the job. rank, world_size, exchange and agree use the
  // mesh's numbers; everything else, and all error texts, use the job's. They differ if the mesh is
  // a part of another.
  virtual int job_rank(int rank) const { return rank; }

  // Returns the texts of all ranks, in rank order, of any lengths. `tag` says what they are about
  // and, once there is a collective sequence, has a place in it: a rank that trains meanwhile is
  // then found at once.
  // Requires: collective over all ranks, with an equal tag, outside steps: the control communicator
  //   is not in use.
  // Errors: CommError, the job's first failure: a rank is gone or missing at the deadline, or the
  //   ranks do different things.
  virtual std::vector<std::string> exchange(const CollectiveTag& tag, std::string_view text) = 0;

  // Compares `lines` over all ranks, line by line.
  // Requires: as exchange.
  // Errors: as exchange; CommError (78) on ALL ranks if they differ, with the first difference and
  //   both values and ranks.
  virtual void agree(const CollectiveTag& tag, const std::vector<std::string>& lines);

  // Makes `failure` the job's failure, unless it has one, and wakes every rank that waits: from
  // then on every collective and exchange of every rank throws the first failure. Never blocks.
  virtual void fail(const Failure& failure) noexcept = 0;
  // Returns the job's first failure; empty while nothing failed. Back-ends poll it in their waits.
  virtual std::optional<Failure> first_failure() const = 0;
  // Throws the first failure as a CommError with its code; `where` is added if the failure names no
  // place.
  // Errors: StateError if nothing failed.
  [[noreturn]] void throw_first_failure(std::string_view where) const;
  // Fails the job: this rank gives up because of `cause`. Never blocks.
  void abort(std::string_view cause) noexcept;

  // Notifies the other ranks that this one is about to destroy its communicators, so that a rank
  // that still needs it fails at once. The default is for planes whose communicators wait for no
  // other rank.
  virtual void leave() noexcept {}

  // Returns how `rank` ended; empty while it lives.
  virtual std::optional<PeerEnd> end_of(int rank) const = 0;
  // Returns the failure that this end means for a rank that needs `rank`.
  virtual Failure failure_of_end(int rank, PeerEnd end) const = 0;

  // Records a collective that this rank issues on a device, where ranks do not meet on the host,
  // for peers that wait for it in vain. Ignores a collective without a place in the collective
  // sequence. Cheap.
  // Requires: calls in the order of the sequence.
  virtual void post(const PostedCollective& posted) noexcept = 0;
  // Return the last place that `rank` has posted in the collective sequence of `sequence`, and the
  // collective that it posted at `sequence`, or its mark, if that is still known. If two ranks post
  // and then look at each other, at least one sees the other's. A rank that is not in that sequence
  // reports a place of another one, or 0.
  virtual uint64_t last_posted(int rank, uint64_t sequence) const = 0;
  virtual std::optional<PostedCollective> posted(int rank, uint64_t sequence) const = 0;
  virtual std::optional<uint64_t> posted_mark(int rank, uint64_t sequence) const = 0;

  // Shares this rank's posted collectives with ranks that cannot read them, because something is
  // late.
  virtual void share_posted() {}

  // Reports that others wait for a rank: once a job, over several hosts once by each rank that
  // waits (MeshEvent::Kind::kSlowRank).
  virtual void report_slow(const SlowRank& slow) const = 0;
};

}  // namespace fsdp
