// How the ranks of a job agree, fail and end together: all between ranks that is no collective on a
// stream.
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

// One rank's side of it. It lives in host memory and needs no device, also where the collectives
// travel between devices. Implementations: ranks of one host that share memory
// (job/segment_control_plane.h), those of several hosts (store/store_control_plane.h), one rank of
// a world that is imagined (simulated/simulated_control_plane.h), the ranks of a part of a mesh
// (job/part_control_plane.h).
//
// Destroying it is this rank's end: the others learn that it finished, or, if an exception is
// leaving the scope, that it gave up. Communicators are destroyed before the plane that they belong
// to. As their destruction may wait for other ranks, leave() tells the same before.
// Thread-safe, but exchange and agree: one thread of a rank at a time.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // These two, and exchange and agree, number the ranks of the mesh. All else, and all error texts,
  // number those of the job, which differ where the mesh is a part of another: job_rank maps the
  // first to the second.
  virtual int job_rank(int rank) const { return rank; }

  // The texts of all ranks, in rank order, of any lengths. `tag` says what they are about and, once
  // there is a host order, the place in it: so a rank that trains meanwhile is found at once.
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

  // Makes `failure` the job's, unless it has one, and wakes every rank that waits: from here on
  // every collective and exchange of every rank ends by throwing the first failure. Never blocks.
  virtual void fail(const Failure& failure) noexcept = 0;
  // Empty while nothing failed. What a back-end polls in its waits.
  virtual std::optional<Failure> first_failure() const = 0;
  // Throws it; `where` is added if it names no place of its own.
  // Errors: always: CommError with the failure's code; StateError if nothing failed.
  [[noreturn]] void throw_first_failure(std::string_view where) const;
  // Fails the job: this rank gives up because of `cause`. Never blocks.
  void abort(std::string_view cause) noexcept;

  // Tells the other ranks that this one is about to destroy its communicators, so that a rank that
  // still needs it fails at once. Default: for planes whose communicators wait for no other rank.
  virtual void leave() noexcept {}

  // How `rank` is gone; empty while it lives.
  virtual std::optional<PeerEnd> end_of(int rank) const = 0;
  // The failure that its end is for a rank that needs it.
  virtual Failure failure_of_end(int rank, PeerEnd end) const = 0;

  // This rank issues a collective on a device, where nobody meets on the host: it is kept for who
  // waits for it in vain, if it has a place in the host order. In that order. Cheap.
  virtual void post(const PostedCollective& posted) noexcept = 0;
  // How far `rank` has come in the host order of `sequence`; and what it issued there, or its mark,
  // if that is still known. Of two ranks that post and look at each other, one sees the other's.
  // A rank that has no part in that order has come to a place of another one, or to 0.
  virtual uint64_t last_posted(int rank, uint64_t sequence) const = 0;
  virtual std::optional<PostedCollective> posted(int rank, uint64_t sequence) const = 0;
  virtual std::optional<uint64_t> posted_mark(int rank, uint64_t sequence) const = 0;

  // Something is late: what this rank has posted is shown to those who cannot look at it.
  virtual void share_posted() {}

  // Others wait for that rank: said once a job, over several hosts once by each rank that waits
  // (MeshEvent::Kind::kSlowRank).
  virtual void report_slow(const SlowRank& slow) const = 0;
};

}  // namespace fsdp
