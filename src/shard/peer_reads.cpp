#include "shard/peer_reads.h"

namespace fsdp {

RanksView PeerReads::map_ranks(void* mine, int64_t bytes, Axis axis) {
  if (!maps_) return {};
  // map_ranks uses the gather communicator on this thread. Gathers of another engine may be in
  // flight on the shared gather stream, whose thread uses the same communicator. So this thread
  // first waits for the stream.
  streams_.gather->synchronize();
  RanksView view = comms_.gather(axis).map_ranks(mine, bytes);
  // One barrier orders the reads of all units. If two units have different axes, the barrier is
  // over the whole world.
  if (view) reads_ = reads_.value_or(axis) == axis ? axis : Axis::kWorld;
  return view;
}

// The barrier runs on the gather stream, because it uses the communicator of this stream. The
// barrier begins after the reads and writes that the compute stream has issued so far. Compute's
// later reads and writes begin when all ranks have reached the barrier.
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
