// ShardContext holds the parts that all units of an engine share: streams, communicators, memory.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <array>
#include <memory>
#include <vector>

#include "plan/placement.h"
#include "runtime/span_log.h"
#include "shard/comm_streams.h"
#include "shard/communicators.h"
#include "shard/engine_memory.h"
#include "shard/gradient_format.h"
#include "shard/main_place.h"
#include "shard/peer_reads.h"

namespace fsdp {

// The last two reductions of zero-copy gradients ([Note: zero-copy gradients] in
// gradient_places.h); `turn` is the older one, which the next reduction replaces. Compute waits for
// it before it makes another such gradient (wait 8), so that at most two exist.
struct ZeroCopyWindow {
  explicit ZeroCopyWindow(const Device& device) : reduced{Event(device), Event(device)} {}

  std::array<Event, 2> reduced;
  int turn = 0;
  // If compute is not inline: the gradients that these reductions read. They are freed when compute
  // has been given its wait for the reduction, since LibTorch reuses memory in compute's order. If
  // the host freed them when the reduction ends, it would hold many: it runs ahead of the device.
  std::array<std::vector<std::shared_ptr<const void>>, 2> held;
};

struct ShardContext {
  ShardContext(Mesh mesh, const Options& options);
  ~ShardContext();
  ShardContext(const ShardContext&) = delete;
  ShardContext& operator=(const ShardContext&) = delete;

  const Mesh mesh;
  const bool debug;
  SpanLog spans;  // outlives the streams, whose last work writes to it
  Communicators comms{mesh};
  CommStreams streams;
  EngineMemory memory;
  const std::unique_ptr<MainPlace> main;
  GradientFormat format;
  PeerReads peers;
  ZeroCopyWindow zero_copy{streams.device};
  // True if the trap is armed: views of main shards and main gradients carry its key.
  bool watches_shards = false;
};

// Returns the collectives of a unit with strategy `of`.
UnitCollectives collectives_for(const ShardContext& context, Strategy of);

}  // namespace fsdp
