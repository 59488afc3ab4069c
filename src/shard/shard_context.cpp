#include "shard/shard_context.h"

#include <utility>

namespace fsdp {

ShardContext::ShardContext(Mesh of, const Options& options)
    : mesh(std::move(of)),
      debug(options.debug),
      updates_in_backward(options.optimizer_in_backward),
      streams(mesh, options, spans),
      memory(mesh, options, comms, streams),
      main(MainPlace::make(mesh, options, streams, memory)),
      format(options, comms.reduce(), mesh.world_size()),
      peers(mesh, options, comms, streams) {}

// The streams of the mesh outlive this engine. Work on the streams uses memory, events and the span
// log. This work must be done before the destructors of the members free them.
ShardContext::~ShardContext() { streams.finish(); }

UnitCollectives collectives_for(const ShardContext& context, Strategy of) {
  return moves_of(placements_of(of), state_of(context.mesh).shape(), context.main->is_host());
}

}  // namespace fsdp
