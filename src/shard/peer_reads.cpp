#include "shard/peer_reads.h"

namespace fsdp {

RanksView PeerReads::map_ranks(void* mine, int64_t bytes, Axis axis) {
  if (!maps_) return {};
  streams_.gather->synchronize();  // another engine's gathers: the channel is used here, next
  RanksView view = comms_.gather(axis).map_ranks(mine, bytes);
  if (view) reads_ = reads_.value_or(axis) == axis ? axis : Axis::kWorld;
  return view;
}

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
