// Collectives between ranks, on plain memory: pointers, element counts and streams, never tensors.
//
// Implementations: threads and processes of one host (CpuCommunicator), threads on one GPU
// (DeviceCommunicator), a GPU each (NcclCommunicator), small values over the store
// (StoreCommunicator), a group whose other ranks are imagined (SimulatedCommunicator), a real group
// that moves nothing (AblatedCommunicator). A group of one rank is legal everywhere and moves
// nothing that is in place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/reduce.h"
#include "runtime/dtype.h"

namespace fsdp {

class Buffer;
class RanksView;
class Stream;

enum class Operation : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier };

// How ranks take part in an operation: a row for each.
struct OperationTraits {
  std::string_view name{};          // empty: there is no such operation
  bool sends_to_each = false;       // `send` holds a piece for each rank; else one piece
  bool receives_from_each = false;  // `recv` holds a piece from each rank; else one piece
  bool reduces = false;             // by Collective::reduce_op
  bool has_root = false;            // Collective::root
};
constexpr OperationTraits traits_of(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
      return {.name = "all_gather", .receives_from_each = true};
    case Operation::kReduceScatter:
      return {.name = "reduce_scatter", .sends_to_each = true, .reduces = true};
    case Operation::kAllReduce:
      return {.name = "all_reduce", .reduces = true};
    case Operation::kBroadcast:
      return {.name = "broadcast", .has_root = true};
    case Operation::kBarrier:
      return {.name = "barrier"};
  }
  return {};
}
constexpr std::string_view name_of(Operation operation) { return traits_of(operation).name; }

// Elements of the part's dtype that lie together.
struct SendRun {
  const void* data = nullptr;
  int64_t numel = 0;
};

// One contiguous run of a collective. `numel` counts the elements of ONE rank's piece for
// all_gather (recv holds size()·numel) and reduce_scatter (send holds size()·numel), else of the
// whole run. 0 is legal. send and recv may be the same memory where "in place" is said below; else
// they must not overlap.
struct CollectivePart {
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
  // What is sent, one run after the other, where it does not lie in one place; empty: it lies at
  // `send`, which is ignored otherwise. Together as many elements as send would hold, on every
  // rank; recv overlaps none. Ranks need not agree on runs. An implementation may copy them:
  // between CPU ranks a staging area of a fixed size takes them in rounds. Lifetime: the array,
  // too, until the stream has passed the collective.
  std::span<const SendRun> runs = {};
};

// What a rank's program did since its collective before: Mesh::note.
struct CollectiveAnnotation {
  uint64_t hash = 0;            // of all of it; 0: nothing
  std::array<char, 96> text{};  // its beginning, for messages, with a closing zero
};

// [Note: orders of a job]
// The job's mesh and each part of it number their collectives for themselves, in a host order each.
// A sequence is a place in an order and the order's begin, so that no two meshes of a rank, and no
// two parts with different ranks, use the same one: the number of the order among those of its
// ranks (0: the job's mesh), the lowest rank of the part, and the place. Place 0 of a part is its
// making.
inline constexpr int kPlaceBits = 40;
inline constexpr int kRankBits = 20;
inline constexpr int kOrders = 8;  // that one rank may have
constexpr uint64_t begin_of_order(int order, int first_rank) {
  return ((static_cast<uint64_t>(order) << kRankBits) + static_cast<uint64_t>(first_rank))
         << kPlaceBits;
}
constexpr uint64_t begin_of_order(uint64_t sequence) {
  return sequence >> kPlaceBits << kPlaceBits;
}
constexpr int order_of(uint64_t sequence) {
  return static_cast<int>(sequence >> (kPlaceBits + kRankBits)) % kOrders;
}
constexpr uint64_t place_of(uint64_t sequence) { return sequence - begin_of_order(sequence); }

// What all ranks must agree on about a collective besides its operation, parts and reduce-op.
struct CollectiveTag {
  // Place in a host order of the job ([Note: orders of a job]), and of one collective; 0: none
  // (before there is a mesh).
  uint64_t sequence = 0;
  // The unit's FQN or the purpose ("gradient norm"); copied. All of it is compared, messages show
  // the last 44 bytes of a long one.
  std::string_view label;
  CollectiveAnnotation note{};
};

// One collective, as every rank of the group issues it.
//
// [Note: operations to come]
// Point-to-point and all_to_all have room here. A send and its receive name the other rank in
// `root` (`has_root`), and only these two ranks issue them, so their tag has no place in the order
// of all ranks. all_to_all sends to each and receives from each; pieces of unequal sizes need a
// span of counts, one for each rank, beside CollectivePart::numel. An operation exists once
// traits_of has a row for it. No switch over Operation has a default, so that the compiler names
// each back-end that lacks the case; require_valid refuses a value without a row, and a root or a
// reduce-op where the row takes none.
struct Collective {
  Operation operation = Operation::kBarrier;
  std::span<const CollectivePart> parts = {};  // of a barrier none
  CollectiveTag tag = {};
  ReduceOp reduce_op = ReduceOp::kSum;  // kSum where nothing is reduced
  int root = -1;                        // of broadcast: the rank that sends; else -1

  // How many pieces of `numel` elements a part sends, and how many it receives, on each of `size`
  // ranks.
  int pieces_sent(int size) const { return traits_of(operation).sends_to_each ? size : 1; }
  int pieces_received(int size) const { return traits_of(operation).receives_from_each ? size : 1; }
};

// Optional abilities of a communicator.
struct Capabilities {
  bool averages = true;     // takes ReduceOp::kAvg; else scale what is sent by 1/size() for a mean
  bool takes_runs = true;   // takes parts of several runs
  bool maps_ranks = false;  // map_ranks shows whole pages, of 256 KiB and more
};

// Requires (all collectives): every rank of the group issues the same collectives in the same order
//   with equal operation, part count, counts, dtypes, reduce-op, root and tag. send memory stays
//   unchanged and recv memory untouched by others until the stream has passed the collective.
// Effects: the work is issued on `stream`; with an inline CPU stream it is complete on return. The
//   parts of one call travel as one collective (the ranks wait for each other once; CPU: once for
//   each 32 parts).
// Ordering: sums are formed in rank order 0, 1, …, size-1, in fp32 for floating types narrower than
//   64 bits (then rounded once), in the type itself otherwise (integers wrap); so local and shm
//   give the same bits on all ranks. kAvg divides that sum by size() (exact IEEE division) and
//   needs a floating type. kMax is NaN if any contribution is.
// Errors: InvalidArgument for arguments that no rank may use. CommError, from the call or, for
//   threaded streams, from the next wait on the stream: a rank died (named, with its cause), the
//   deadline passed (the missing rank named), or ranks disagree (both sides named with operation,
//   count, dtype, reduce-op, label and sequence). After an error the job is aborted: every later
//   call on any rank, in any of its communicators, throws the first error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Zeroed memory that peers can read directly where the implementation profits (aligned to 64
  // bytes). Not a collective. Collectives accept any other memory too, at the price of a copy.
  // Lifetime: must be destroyed before the communicator.
  virtual Buffer allocate(int64_t bytes) = 0;

  // All ranks' `mine` side by side, read-only: rank r's bytes lie at r·bytes of the result, the
  // memory itself and not a copy. Empty, on every rank, where that cannot be shown (threads; less
  // than 256 KiB; no whole pages): callers gather instead. Nothing is ordered by it: the callers
  // keep those who write to their own piece and those who read it apart. Who writes to the view
  // changes a copy of its own and goes on; take_write() of the view tells.
  // Requires: collective, between operations; equal `bytes`; `mine` from allocate().
  // Lifetime: a piece that its owner has released reads as zeros or as what lies there next.
  virtual RanksView map_ranks(const void* mine, int64_t bytes);
  // Equal on all ranks.
  virtual Capabilities capabilities() const { return {}; }

  // Issues a collective on `stream`; the functions below say what each operation does. An
  // implementation writes this one function.
  virtual void issue(const Collective& collective, Stream& stream) = 0;

  // recv[r·numel, (r+1)·numel) = rank r's send. In place: send == recv + rank·numel.
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag, Stream& stream) {
    issue({Operation::kAllGather, parts, tag}, stream);
  }
  // recv = reduction over ranks s of s's send[rank·numel, (rank+1)·numel). In place: recv == send +
  // rank·numel (other pieces of send are unchanged).
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) {
    issue({Operation::kReduceScatter, parts, tag, op}, stream);
  }
  // recv = reduction over ranks of send. In place: recv == send.
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) {
    issue({Operation::kAllReduce, parts, tag, op}, stream);
  }
  // recv = root's send, on every rank. In place: recv == send.
  void broadcast(std::span<const CollectivePart> parts, int root, CollectiveTag tag,
                 Stream& stream) {
    issue({Operation::kBroadcast, parts, tag, ReduceOp::kSum, root}, stream);
  }
  void barrier(CollectiveTag tag, Stream& stream) { issue({.tag = tag}, stream); }

  // A communicator of those of these ranks that give the same `color`, ranked by `key`, then by
  // their rank here, as MPI_Comm_split. It may be used beside this one, by another thread.
  // Requires: collective over this communicator, between its operations; one split of a rank at a
  //   time; colors are not negative. Messages about the new one name ranks of the job.
  // Lifetime: it may outlive this one, but not the mesh.
  // Errors: as collectives; DeviceError, on all ranks, when the back-end can carry no more
  //   communicators (CPU: 56 a rank, whether they still live or not).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // A communicator of the same ranks whose allocate() gives memory that GPUs of other ranks reach
  // without a copy (Options::tuning.nccl_registration), and is a collective, as using it is: all
  // ranks use the same places of what they were given at once. `by_copy_engines`: gathers are done
  // beside kernels, where that can be.
  // Requires: collective, and nothing under way. Its memory goes before it.
  // Errors: InvalidArgument, on all ranks, where the back-end has none.
  virtual std::unique_ptr<Communicator> with_windows(bool by_copy_engines);

  // Makes every rank's pending and later collectives throw, with `cause` as the cause, if nothing
  // failed before. Called by a rank that gives up. Never blocks, never throws.
  virtual void abort(std::string_view cause) noexcept = 0;
};

}  // namespace fsdp
