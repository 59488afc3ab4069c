#include "comm/simulated/simulated_communicator.h"

#include <vector>

#include "comm/ranks_view.h"
#include "comm/sent.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

// Copies element runs of each part: `send_piece` and `recv_piece` count in pieces of part.numel.
void keep_own(std::span<const CollectivePart> parts, int send_piece, int recv_piece,
              Stream& stream) {
  cpu_stream(stream).run([kept = std::vector(parts.begin(), parts.end()), send_piece, recv_piece] {
    for (const CollectivePart& part : kept) {
      const int64_t bytes = part.numel * size_of(part.dtype);
      copy_sent(part, send_piece * part.numel, part.numel,
                static_cast<std::byte*>(part.recv) + recv_piece * bytes);
    }
  });
}

}  // namespace

Buffer SilentCommunicator::allocate(int64_t bytes) { return real_->allocate(bytes); }

RanksView SilentCommunicator::map_ranks(const void* mine, int64_t bytes) {
  return real_->map_ranks(mine, bytes);
}

void SilentCommunicator::all_gather(std::span<const CollectivePart> parts, CollectiveTag,
                                    Stream& stream) {
  keep_own(parts, 0, rank(), stream);
}

void SilentCommunicator::reduce_scatter(std::span<const CollectivePart> parts, ReduceOp,
                                        CollectiveTag, Stream& stream) {
  keep_own(parts, rank(), 0, stream);
}

void SilentCommunicator::all_reduce(std::span<const CollectivePart> parts, ReduceOp, CollectiveTag,
                                    Stream& stream) {
  keep_own(parts, 0, 0, stream);
}

}  // namespace fsdp
