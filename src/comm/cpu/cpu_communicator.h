// Collectives in which ranks read each other's memory. Thread ranks and process ranks share this
// implementation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/cpu/group_barrier.h"

namespace fsdp {

// A communicator of ranks on CPU cores of one host. A subclass knows which memory peers can read in
// place. Other data pass through the rank's staging area in rounds.
//
// [Note: paths of data]
//   ≤ kEagerBytes in all    copied into the rank's endpoint: barrier, read
//   memory peers can read   read in place: barrier, read, barrier
//   other memory, runs      copied into the staging area first, in rounds; a rank copies data
//                           for the next round while peers still read the current round
// A large all_reduce is divided: each rank reduces its share of the elements. After a barrier, each
// rank copies the shares of the other ranks. In all cases an element's sum is formed in rank order.
class CpuCommunicator : public Communicator {
 public:
  int rank() const final { return barrier_.group().rank; }
  int size() const final { return barrier_.group().size(); }
  void issue(const Collective& collective, Stream& stream) final;
  std::unique_ptr<Communicator> split(int color, int key) final;
  void abort(std::string_view cause) noexcept final;

 protected:
  CpuCommunicator(std::shared_ptr<const JobMember> member, RankGroup group);

  int job_rank(int rank) const { return barrier_.group().ranks[rank]; }
  // Makes a communicator of the same kind for `group`, which has some of this communicator's ranks.
  virtual std::unique_ptr<Communicator> make_group(std::shared_ptr<const JobMember> member,
                                                   RankGroup group) const = 0;
  // Returns a number from which resolve() of a peer computes the address of [data, data + bytes).
  // Empty if peers cannot read this memory.
  virtual std::optional<uint64_t> publish(const void* data, int64_t bytes) const = 0;
  // Returns the address, in this process, of the bytes for which `rank` of the job got `place` from
  // publish().
  virtual std::byte* resolve(int rank, uint64_t place) const = 0;
  // Returns the number that publish() would return for this rank's staging area, which has
  // kStagingBytes bytes.
  virtual uint64_t staging_place() = 0;

 private:
  // A range of elements of one part that is exchanged in one round. For reduce_scatter, a slice is
  // size() ranges: the same range of each rank's piece.
  struct Slice {
    int part;
    int64_t begin;
    int64_t numel;
    int64_t staged_at;  // byte offset in the eager buffer or the staging area
  };
  // The work of one exchange: a collective, or at most kMaxParts parts of one.
  struct Call {
    std::span<const CollectivePart> parts;
    const CollectiveRecord& record;
    bool is_eager = false;
    int pieces = 1;  // number of pieces of `numel` elements in each part's send
  };

  void execute(std::span<const CollectivePart> parts, const CollectiveRecord& record);
  void execute_alone(std::span<const CollectivePart> parts) const;
  void exchange_eagerly(const Call& call);
  void exchange_through_memory(const Call& call);
  bool publish_parts(const Call& call);
  bool sends(const Call& call) const;
  static void find_slices(const Call& call, const Slice& after, int64_t capacity, int64_t staged_at,
                          std::vector<Slice>& slices);
  const std::byte* own_together(const Call& call, const Slice& slice, int piece) const;
  void stage(const Call& call, const std::vector<Slice>& slices, std::byte* area) const;
  const std::byte* source(const Call& call, const Slice& slice, int peer, int piece) const;
  void move(const Call& call);
  void gather(const Call& call, const Slice& slice);
  void reduce(const Call& call, const Slice& slice, int piece, void* out, int64_t skip,
              int64_t numel);
  std::byte* reduced(const Call& call, const Slice& slice, int peer) const;
  void spread_shares(const Call& call);

  std::shared_ptr<const JobMember> member_;
  GroupBarrier barrier_;
  // The slices of this round and of the next round, and the sources of one reduction. These vectors
  // are kept, so that after the first collectives nothing is allocated.
  std::vector<Slice> slices_;
  std::vector<Slice> upcoming_;
  std::vector<const void*> sources_;
};

}  // namespace fsdp
