// The control plane, through which the ranks of a job agree, fail and end together. It handles all
// communication between ranks except collectives on streams.
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

// One rank's control plane. A control plane works in host memory and needs no device, even if
// collectives run between devices. Implementations:
//   job/segment_control_plane.h          ranks of one host that share memory
//   store/store_control_plane.h          ranks of several hosts
//   simulated/simulated_control_plane.h  one rank of a simulated world
//   job/part_control_plane.h             the ranks of a part of a mesh
//
// The destructor reports the end of this rank. The other ranks learn that it finished or, if an
// exception is leaving the scope, that it gave up. Communicators are destroyed before the plane
// that they use, and their destructors may wait for other ranks. So leave() is called first and
// reports the end of the rank earlier. Thread-safe, except exchange and agree: only one thread of a
// rank may run them at a time.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Maps a rank of the mesh to its number in the job. rank, world_size, exchange and agree use the
  // mesh's numbers. All other functions and all messages use the job's numbers. The numbers differ
  // if the mesh is a part of another mesh.
  virtual int job_rank(int rank) const { return rank; }

  // Returns the texts of all ranks in rank order. The texts may differ in length. `tag` says what
  // the texts are about. Once a collective sequence exists, the tag also has a place in it. So if
  // another rank issues a collective instead of this exchange, the mistake is found at once.
  // Requires: collective over all ranks, with an equal tag. Called outside steps, while the control
  //   communicator is not in use.
  // Errors: CommError, the job's first failure. For example, a rank has ended, a rank is missing at
  //   the deadline, or the ranks issue different collectives.
  virtual std::vector<std::string> exchange(const CollectiveTag& tag, std::string_view text) = 0;

  // Compares `lines` over all ranks, line by line.
  // Requires: as exchange.
  // Errors: those of exchange. If the lines differ, ALL ranks throw CommError (78) with the first
  //   difference, both values and both ranks.
  virtual void agree(const CollectiveTag& tag, const std::vector<std::string>& lines);

  // Makes `failure` the job's failure, unless the job already has one. Wakes every rank that waits.
  // From then on every collective and exchange of every rank throws the first failure. Never
  // blocks.
  virtual void fail(const Failure& failure) noexcept = 0;
  // Returns the job's first failure. Empty if nothing has failed. Back-ends poll this function
  // while they wait.
  virtual std::optional<Failure> first_failure() const = 0;
  // Throws the first failure as a CommError with its code. If the failure names no place, `where`
  // is added to the message. Errors: StateError if nothing has failed.
  [[noreturn]] void throw_first_failure(std::string_view where) const;
  // Fails the job: this rank gives up because of `cause`. Never blocks.
  void abort(std::string_view cause) noexcept;

  // Notifies the other ranks that this rank is about to destroy its communicators. A rank that
  // still needs this rank then fails at once. The default implementation does nothing, which is
  // sufficient if the destructors of the communicators do not wait for other ranks.
  virtual void leave() noexcept {}

  // Returns how `rank` ended. Empty while the rank is alive.
  virtual std::optional<PeerEnd> end_of(int rank) const = 0;
  // Returns the failure of a rank that has ended but that another rank still needs. `end` is the
  // way in which it ended.
  virtual Failure failure_of_end(int rank, PeerEnd end) const = 0;

  // Records a collective that this rank issues on a device. In such a collective ranks do not wait
  // for each other on the host, so peers that wait too long for this rank read its record. Ignores
  // a collective without a place in the collective sequence. Cheap.
  // Requires: this rank posts its collectives in the order of the sequence.
  virtual void post(const PostedCollective& posted) noexcept = 0;
  // `sequence` is a sequence number, so it also selects a collective sequence ([Note: orders of a
  // job]).
  // - last_posted returns the last place that `rank` has posted in this sequence. If `rank` is not
  //   in this sequence, last_posted returns a place of another sequence or 0.
  // - posted returns the collective that `rank` posted at `sequence`. Empty if the collective is
  //   not known or not kept any more.
  // - posted_mark returns the hash mark_of(PostedCollective) of that collective. Empty if posted
  //   would be empty.
  // If two ranks post and then read each other's posts, at least one of them sees the other's post.
  virtual uint64_t last_posted(int rank, uint64_t sequence) const = 0;
  virtual std::optional<PostedCollective> posted(int rank, uint64_t sequence) const = 0;
  virtual std::optional<uint64_t> posted_mark(int rank, uint64_t sequence) const = 0;

  // Shares this rank's posted collectives with ranks that cannot read this rank's memory. Called
  // when a collective is late.
  virtual void share_posted() {}

  // Reports that other ranks wait for a slow rank (MeshEvent::Kind::kSlowRank). A slow rank is
  // reported once per job. In a job over several hosts, each waiting rank reports the slow rank
  // once.
  virtual void report_slow(const SlowRank& slow) const = 0;
};

}  // namespace fsdp
