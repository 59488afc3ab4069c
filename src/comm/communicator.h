// Collectives between ranks. Collectives work on plain memory (pointers, element counts and
// streams), never on tensors.
//
// Implementations:
//   CpuCommunicator        threads and processes of one host
//   DeviceCommunicator     threads on one GPU
//   NcclCommunicator       one GPU per rank
//   HostsCommunicator      processes of several hosts, on their CPUs
//   StoreCommunicator      small values over a key-value store
//   SimulatedCommunicator  a group with simulated peers
//   AblatedCommunicator    a real group without data transfer
// A group may have one rank. Such a group does not copy data that are in place.
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

// The traits of an operation, which say how ranks take part in it. traits_of has one row for each
// operation.
struct OperationTraits {
  std::string_view name{};          // empty: the operation does not exist
  bool sends_to_each = false;       // `send` holds one piece for each rank; otherwise one piece
  bool receives_from_each = false;  // `recv` holds one piece from each rank; otherwise one piece
  bool reduces = false;             // with Collective::reduce_op
  bool has_root = false;            // uses Collective::root
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

// A part of a collective. For all_gather and reduce_scatter `numel` is the number of elements of
// ONE rank's piece: recv of an all_gather and send of a reduce_scatter hold size()·numel elements.
// For other operations `numel` is the number of elements of the whole part. 0 is legal. `send` and
// `recv` may overlap only as the operation's comment below says after "In place".
struct CollectivePart {
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
  // The input as several contiguous runs, one after the other, for an input that is not contiguous.
  // If `runs` is empty, the input is at `send`. If `runs` is not empty, `send` is ignored. On every
  // rank the runs must hold as many elements as `send` would. The runs must not overlap `recv`.
  // Ranks may use different runs. An implementation may copy the runs: between CPU ranks they pass
  // through a staging area of a fixed size, in rounds.
  // Lifetime: the array of runs must also exist until the stream has run the collective.
  std::span<const SendRun> runs = {};
};

// The annotations since a rank's previous collective. See CollectiveSequence::note.
struct CollectiveAnnotation {
  uint64_t hash = 0;            // covers all annotations; 0: none
  std::array<char, 96> text{};  // the first 95 bytes, for messages
};

// [Note: orders of a job] The job's mesh and each part of the mesh have their own collective
// sequence. A sequence number consists of three fields: the index of the sequence, the lowest rank
// of the mesh or part, and the place in the sequence. The index is 0 for the job's mesh. For a
// part, it differs from the indexes of all other sequences that the part's ranks use. So two meshes
// of a rank never use the same number, and two parts with different ranks do not either. Place 0 of
// a part is the creation of the part.
inline constexpr int kPlaceBits = 40;
inline constexpr int kRankBits = 20;
inline constexpr int kOrders = 8;  // the most sequences of one rank
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

// The tag of a collective. All ranks must agree on the tag, and on operation, parts and reduce-op.
struct CollectiveTag {
  // The place in a collective sequence of the job ([Note: orders of a job]). Each place belongs to
  // one collective. 0 means no place, for example before the mesh exists.
  uint64_t sequence = 0;
  // The unit's FQN or the purpose of the collective ("gradient norm"). The label is copied. All its
  // bytes are compared. Messages show the last 44 bytes of a long label.
  std::string_view label;
  CollectiveAnnotation note{};
};

// One collective. Every rank of the group issues it with equal values.
//
// [Note: operations to come] This struct can also describe point-to-point operations and
// all_to_all. A send and its receive name the other rank in `root` (`has_root`). Only these two
// ranks issue them, so their tag has no place in the sequence of all ranks. An all_to_all sends to
// each rank and receives from each rank. Pieces of unequal sizes need a span of counts, one for
// each rank, in addition to CollectivePart::numel. To add an operation, add a row to traits_of. No
// switch over Operation has a default, so that the compiler reports each back-end without the new
// case. require_valid rejects an operation without a row. require_valid also rejects a root or a
// reduce-op that the row does not use.
struct Collective {
  Operation operation = Operation::kBarrier;
  std::span<const CollectivePart> parts = {};  // empty for a barrier
  CollectiveTag tag = {};
  ReduceOp reduce_op = ReduceOp::kSum;  // kSum if nothing is reduced
  int root = -1;                        // for broadcast, the rank that sends; otherwise -1

  // Return the number of pieces of `numel` elements that each of `size` ranks sends and receives.
  int pieces_sent(int size) const { return traits_of(operation).sends_to_each ? size : 1; }
  int pieces_received(int size) const { return traits_of(operation).receives_from_each ? size : 1; }
};

// Optional abilities of a communicator.
struct Capabilities {
  bool averages = true;     // accepts ReduceOp::kAvg; otherwise scale the input by 1/size()
  bool takes_runs = true;   // accepts parts with several runs
  bool maps_ranks = false;  // map_ranks maps whole pages, from 256 KiB on
  int hosts = 1;            // number of hosts between which HostsCommunicator sends data
};

// One rank's handle of a group of ranks that issue collectives together.
//
// Requires (all collectives): every rank of the group must issue the same collectives in the same
//   order. Operation, number of parts, element counts, dtypes, reduce-op, root and tag must be
//   equal. Until the stream has run the collective, `send` memory must not change, and no other
//   code may use `recv` memory.
// Effects: the work is issued on `stream`. On an inline CPU stream the work is complete on return.
//   The parts of one call form one collective, so the ranks wait for each other only once (on CPUs:
//   once per 32 parts).
// Ordering (except over NCCL and over several hosts): sums are formed in rank order 0, 1, …,
//   size-1. Floating types narrower than 64 bits are summed in fp32 and rounded once. Other types
//   are summed in the type itself, and integers wrap. So thread ranks and process ranks get the
//   same bits. kAvg divides the sum by size() (exact IEEE division) and needs a floating type. kMax
//   is NaN if any input is NaN.
// Errors: InvalidArgument if an argument is invalid on its own, whatever the other ranks pass.
//   CommError in three cases: a rank died (the message names the rank and the cause), the deadline
//   passed (the message names the missing rank), or ranks disagree (the message shows both sides
//   with operation, count, dtype, reduce-op, label and sequence). On a threaded stream, the next
//   wait on the stream throws the CommError, and the call itself does not. After an error the job
//   is aborted: every later call on any rank, in any of its communicators, throws the first error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Allocates zeroed memory, aligned to 64 bytes. Peers can read this memory directly, if that
  // saves a copy. Not a collective. Collectives also accept any other memory, but may copy it.
  // Lifetime: the buffer must be destroyed before the communicator.
  virtual Buffer allocate(int64_t bytes) = 0;

  // Maps the memory `mine` of all ranks side by side, read-only. Rank r's bytes are at offset
  // r·bytes of the result. The result shows the ranks' memory itself, not a copy. If the memory
  // cannot be mapped, returns an empty view on every rank, and callers must gather instead. Memory
  // cannot be mapped if the ranks are threads, if `bytes` is less than 256 KiB, or if the memory
  // does not consist of whole pages. The call does not synchronize ranks. Between a rank's write to
  // its own memory and a peer's read of the view, callers must synchronize the ranks. A write to
  // the view changes a private copy of the page and does not fail. take_write() of the view reports
  // the write.
  // Requires: collective, with no operation of this communicator in flight. `bytes` must be equal
  //   on all ranks. `mine` must come from allocate().
  // Lifetime: after a rank has released its memory, its piece of the view reads as zeros or as the
  //   data of the memory's next user.
  virtual RanksView map_ranks(const void* mine, int64_t bytes);
  // Returns the optional abilities. They are equal on all ranks.
  virtual Capabilities capabilities() const { return {}; }

  // Issues a collective on `stream`. The functions below call this function and document each
  // operation. They are not virtual.
  virtual void issue(const Collective& collective, Stream& stream) = 0;

  // Gathers on all ranks: recv[r·numel, (r+1)·numel) = rank r's send. In place: send == recv +
  // rank·numel.
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag, Stream& stream) {
    issue({Operation::kAllGather, parts, tag}, stream);
  }
  // Reduces and scatters: recv = the reduction of send[rank·numel, (rank+1)·numel) over all ranks.
  // In place: recv == send + rank·numel. The other pieces of send do not change.
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) {
    issue({Operation::kReduceScatter, parts, tag, op}, stream);
  }
  // Reduces on all ranks: recv = the reduction of all ranks' send. In place: recv == send.
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

  // Returns a communicator of the ranks that pass the same `color`. Its ranks are ordered by `key`,
  // then by their rank in this communicator, as for MPI_Comm_split. One thread may use the new
  // communicator while another thread uses this one.
  // Requires: collective over this communicator, with no operation of it in flight. A rank must not
  //   run two splits at a time. `color` must not be negative.
  // Messages about the new communicator show the job's rank numbers.
  // Lifetime: the new communicator may outlive this one, but not the mesh.
  // Errors: those of collectives. DeviceError, on all ranks, if the back-end supports no more
  //   communicators (CPU: 56 per rank, counting destroyed ones).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Returns a communicator of the same ranks that allocates registered memory
  // (Options::tuning.nccl_registration). The new communicator's allocate() is a collective. GPUs of
  // other ranks access the memory that it returns without a copy. This memory must be used on all
  // ranks alike: in every collective, all ranks must use the same offsets of the buffers that they
  // allocated together. If `by_copy_engines` is true, gathers use copy engines where possible, so
  // that they run concurrently with kernels.
  // Requires: collective, with no operation in flight. The memory must be released before the new
  //   communicator is destroyed.
  // Errors: InvalidArgument, on all ranks, if the back-end cannot register memory.
  virtual std::unique_ptr<Communicator> with_windows(bool by_copy_engines);

  // Makes pending and later collectives of every rank throw an error with the cause `cause`, unless
  // the job has already failed. A rank calls abort when it has failed and will issue no more
  // collectives. Never blocks and never throws.
  virtual void abort(std::string_view cause) noexcept = 0;
};

}  // namespace fsdp
