#include "engine/reduce_scalars.h"

#include "comm/mesh_state.h"
#include "comm/ring_bytes.h"

namespace fsdp {

void reduce_scalars(ShardContext& context, const CollectivePart& part, ReduceOp op,
                    std::string_view what) {
  const CollectiveTag tag = context.comms.next_tag(Operation::kAllReduce, part.numel, what);
  const int ranks = context.mesh.world_size();
  Traffic& sent = context.comms.sent;
  sent.other_bytes += ring_bytes(Operation::kAllReduce, {&part, 1}, ranks);
  // The control communicator of several hosts sends through the store, which is not counted.
  if (!context.main->is_host()) {
    sent.to_other_hosts += bytes_to_other_hosts(Operation::kAllReduce, {&part, 1}, ranks,
                                                context.comms.reduce().capabilities().hosts);
  }
  // If main state is on the host, so are the scalars, and the device's communicators cannot reduce
  // them.
  if (context.main->is_host()) {
    const ExposedTimer timer(context.streams);
    return state_of(context.mesh)
        .control_communicator()
        .all_reduce({&part, 1}, op, tag, context.main->stream());
  }
  Stream& stream = *context.streams.reduce;
  Event computed(context.streams.device);
  context.streams.compute->record(computed);
  stream.wait(computed);  // wait 12
  context.comms.reduce().all_reduce({&part, 1}, op, tag, stream);
  stream.record(computed);
  const ExposedTimer timer(context.streams);
  context.streams.compute->wait(computed);  // wait 13
}

}  // namespace fsdp
