#include "shard/peer_reads.h"

namespace fsdp {

RanksView PeerReads::map_ranks(void* mine, int64_t bytes, Axis axis) {
  if (!maps_) return {};
  // map_ranks uses the gather communicator from this thread. Gathers of another engine may be in
  // flight on the shared stream, which uses it from a thread of its own.
  streams_.gather->synchronize();
  RanksView view = comms_.gather(axis).map_ranks(mine, bytes);
  // One barrier orders the reads of all units, so it is over the ranks of all their axes.
  if (view) reads_ = reads_.value_or(axis) == axis ? axis : Axis::kWorld;
  return view;
}

// The barrier runs on the gather stream, whose communicator it uses. It begins behind compute's
// reads and writes so far. Compute's later ones begin when all ranks have reached it.
void PeerReads::meet(std::string_view purpose) {
  if (!reads_) return;
  const ExposedTimer timer(streams_);
  const ContextSpan span = streams_.span(*streams_.compute, "meet", purpose);
  Event met(streams_.device);
  streams_.compute->record(met);
  streams_.gather->wait(met);  // wait 11
  comms_.gather(*reads_).barrier(state_of(mesh_).order().next(Operation::kBarrier, 0, purpose),
                                 *streams_.gather);
  streams_.gather->record(met);
  streams_.compute->wait(met);  // wait 11
}

}  // namespace fsdp
