// Reductions over the ranks of several hosts, in rounds of a limited size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/hosts/host_exchange.h"
#include "runtime/buffer.h"

namespace fsdp {

// The staging area of one communicator's reductions, and the reductions. Used by one thread at a
// time.
//
// [Note: rounds over hosts] A round has three steps: the ranks of this host sum their inputs, the
// hosts exchange the sums, and this rank sums the sums of the hosts. While the data of a round
// travel, the next round is summed on this host. So two rounds have data in the staging area, and
// each has its own half.
class HostReduction {
 public:
  // Which elements of a part a rank reduces.
  enum class Pieces : uint8_t {
    kOfRanks,  // `send` has one piece for each rank, and a rank reduces its piece
    kWhole,    // every rank reduces the whole part
  };
  // `inside` connects the ranks of this host. It is null if there is only this rank.
  HostReduction(HostPlace place, Communicator* inside) : place_(place), inside_(inside) {}

  // Reduces each part into its `recv`. Errors: CommError, the job's failure.
  void run(std::span<const CollectivePart> parts, Pieces pieces, ReduceOp op,
           HostExchange& exchange);

 private:
  // A range of elements of a part or, for Pieces::kOfRanks, of every piece of a part.
  struct Slice {
    size_t part = 0;
    int64_t begin = 0;
    int64_t numel = 0;
    int64_t at = 0;  // byte offset in a block
  };
  using Slices = std::vector<Slice>;
  // One half of the staging area, with the messages that use it.
  struct Half {
    Buffer memory;  // a block for each host's data to send, then a block for each host's received
    HostExchange::Messages sent, received;
  };
  struct Call {
    std::span<const CollectivePart> parts;
    Pieces pieces;
    ReduceOp op;
    HostExchange& exchange;
  };

  void run_rounds(const Call& call);
  int64_t block_bytes() const;
  std::byte* to_send(Half& half, int host) const;
  std::byte* received(Half& half, int host) const;
  std::vector<Slices> rounds_of(std::span<const CollectivePart> parts) const;
  const std::byte* in_place(const Call& call, const Slices& slices, int host) const;
  void reduce_inside(const Call& call, const Slices& slices, Half& half);
  void exchange_sums(const Call& call, const Slices& slices, Half& half);
  void reduce_hosts(const Call& call, const Slices& slices, Half& half);

  const HostPlace place_;
  Communicator* const inside_;
  std::array<Half, 2> halves_;  // allocated at first use
};

}  // namespace fsdp
