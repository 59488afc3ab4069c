// Collectives between ranks, on plain memory: pointers, element counts and streams, never tensors.
//
// Implementations: threads and processes of one host (CpuCommunicator), threads on one GPU
// (DeviceCommunicator), one GPU per rank (NcclCommunicator), small values over a key-value store
// (StoreCommunicator), a group with simulated peers (SimulatedCommunicator), a real group without
// data transfer (AblatedCommunicator). A group of one rank is legal everywhere and copies nothing
// that is in place.
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

// Traits of an operation: how ranks take part in it. traits_of has a row for each operation.
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

// A contiguous run of elements of the part's dtype.
struct SendRun {
  const void* data = nullptr;
  int64_t numel = 0;
};

// A part of a collective. `numel` counts the elements of ONE rank's piece for all_gather (recv
// holds size()·numel) and reduce_scatter (send holds size()·numel), else of the whole part. 0 is
// legal. send and recv may be the same memory if the collective says "In place" below; otherwise
// they must not overlap.
struct CollectivePart {
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
  // The input as several runs, one after the other, if it is not contiguous. If empty, the input is
  // at `send`, which is ignored otherwise. The runs hold as many elements as send would, on every
  // rank; recv overlaps none of them. Ranks need not agree on runs. An implementation may copy
  // them: between CPU ranks they pass through a staging area of a fixed size, in rounds.
  // Lifetime: the array, too, until the stream has passed the collective.
  std::span<const SendRun> runs = {};
};

// The annotations since a rank's previous collective: CollectiveSequence::note.
struct CollectiveAnnotation {
  uint64_t hash = 0;            // covers all annotations; 0: none
  std::array<char, 96> text{};  // the first 95 bytes, for messages
};

// [Note: orders of a job]
// The job's mesh and each part of it number their collectives separately, each in its own
// collective sequence. A sequence number contains the begin of its sequence, so that no two
// meshes of a rank, and no two parts with different ranks, use the same number. It consists of the
// number of the sequence among those of its ranks (0: the job's mesh), the lowest rank of the part,
// and the place. Place 0 of a part is its creation.
inline constexpr int kPlaceBits = 40;
inline constexpr int kRankBits = 20;
inline constexpr int kOrders = 8;  // at most, for one rank
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

// The tag of a collective, on which all ranks must agree as on its operation, parts and reduce-op.
struct CollectiveTag {
  // The place in a collective sequence of the job ([Note: orders of a job]). Each place belongs to
  // one collective. 0: no place (before the mesh exists, for example).
  uint64_t sequence = 0;
  // The unit's FQN or the purpose ("gradient norm"); copied. All bytes are compared; messages show
  // the last 44 of a long label.
  std::string_view label;
  CollectiveAnnotation note{};
};

// One collective, as every rank of the group issues it.
//
// [Note: operations to come]
// Point-to-point operations and all_to_all fit in here. A send and its receive name the other rank
// in `root` (`has_root`), and only these two ranks issue them, so their tag has no place in the
// sequence of all ranks. all_to_all sends to each and receives from each; pieces of unequal sizes
// need a span of counts, one for each rank, beside CollectivePart::numel. An operation exists once
// traits_of has a row for it. No switch over Operation has a default, so that the compiler names
// each back-end that lacks the case. require_valid rejects a value without a row, and a root or a
// reduce-op that the row does not have.
struct Collective {
  Operation operation = Operation::kBarrier;
  std::span<const CollectivePart> parts = {};  // empty for a barrier
  CollectiveTag tag = {};
  ReduceOp reduce_op = ReduceOp::kSum;  // kSum where nothing is reduced
  int root = -1;                        // broadcast: the rank that sends; else -1

  // Return how many pieces of `numel` elements a part sends and receives on each of `size` ranks.
  int pieces_sent(int size) const { return traits_of(operation).sends_to_each ? size : 1; }
  int pieces_received(int size) const { return traits_of(operation).receives_from_each ? size : 1; }
};

// Optional abilities of a communicator.
struct Capabilities {
  bool averages = true;     // accepts ReduceOp::kAvg; else scale the input by 1/size() for a mean
  bool takes_runs = true;   // accepts parts with several runs
  bool maps_ranks = false;  // map_ranks maps whole pages, from 256 KiB on
};

// One rank's end of a group of ranks that issue collectives together.
//
// Requires (all collectives): every rank of the group issues the same collectives in the same order
//   with equal operation, part count, counts, dtypes, reduce-op, root and tag. send memory stays
//   unchanged and recv memory untouched by others until the stream has passed the collective.
// Effects: the work is issued on `stream`; with an inline CPU stream it is complete on return. The
//   parts of one call form one collective (the ranks wait for each other once; CPU: once for each
//   32 parts).
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

  // Allocates zeroed memory, aligned to 64 bytes, that peers can read directly if the
  // implementation profits from it. Not a collective. Collectives accept any other memory too, at
  // the cost of a copy.
  // Lifetime: must be destroyed before the communicator.
  virtual Buffer allocate(int64_t bytes) = 0;

  // Maps all ranks' `mine` side by side, read-only: rank r's bytes are at offset r·bytes of the
  // result, which is the memory itself and not a copy. Returns an empty view on every rank if the
  // memory cannot be mapped (threads; less than 256 KiB; no whole pages): callers gather instead.
  // The call orders nothing: callers keep writes to their own piece and reads of the view apart. A
  // write to the view changes a private copy of the page and continues; take_write() of the view
  // reports it.
  // Requires: collective, between operations; equal `bytes`; `mine` from allocate().
  // Lifetime: a piece that its owner has released reads as zeros or as the data of its next user.
  virtual RanksView map_ranks(const void* mine, int64_t bytes);
  // Returns the optional abilities. Equal on all ranks.
  virtual Capabilities capabilities() const { return {}; }

  // Issues a collective on `stream`; the functions below say what each operation does. An
  // implementation defines only this function.
  virtual void issue(const Collective& collective, Stream& stream) = 0;

  // Gathers on all ranks: recv[r·numel, (r+1)·numel) = rank r's send. In place: send == recv +
  // rank·numel.
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag, Stream& stream) {
    issue({Operation::kAllGather, parts, tag}, stream);
  }
  // Reduces and scatters: recv = reduction over ranks s of s's send[rank·numel, (rank+1)·numel). In
  // place: recv == send + rank·numel (other pieces of send are unchanged).
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) {
    issue({Operation::kReduceScatter, parts, tag, op}, stream);
  }
  // Reduces on all ranks: recv = reduction over ranks of send. In place: recv == send.
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) {
    issue({Operation::kAllReduce, parts, tag, op}, stream);
  }
  // Broadcasts: recv = root's send, on every rank. In place: recv == send.
  void broadcast(std::span<const CollectivePart> parts, int root, CollectiveTag tag,
                 Stream& stream) {
    issue({Operation::kBroadcast, parts, tag, ReduceOp::kSum, root}, stream);
  }
  void barrier(CollectiveTag tag, Stream& stream) { issue({.tag = tag}, stream); }

  // Returns a communicator of the ranks that pass the same `color`, ranked by `key`, then by their
  // rank here, as MPI_Comm_split. Another thread may use it at the same time as this one.
  // Requires: collective over this communicator, between its operations; one split of a rank at a
  //   time; colors are not negative. Messages about the new communicator name ranks of the job.
  // Lifetime: it may outlive this one, but not the mesh.
  // Errors: as collectives; DeviceError, on all ranks, if the back-end supports no more
  //   communicators (CPU: 56 a rank, destroyed ones included).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Returns a communicator of the same ranks whose allocate() returns memory that GPUs of other
  // ranks access without a copy (Options::tuning.nccl_registration). This allocate() is a
  // collective, and so is each use of the memory: all ranks use the same offsets of the buffers
  // that they allocated together. `by_copy_engines`: gathers run beside kernels, if possible.
  // Requires: collective, with no operation in flight. Its memory is released before it.
  // Errors: InvalidArgument, on all ranks, if the back-end has no such memory.
  virtual std::unique_ptr<Communicator> with_windows(bool by_copy_engines);

  // Makes every rank's pending and later collectives throw, with `cause` as the cause, unless the
  // job has failed before. For a rank that gives up. Never blocks, never throws.
  virtual void abort(std::string_view cause) noexcept = 0;
};

}  // namespace fsdp
