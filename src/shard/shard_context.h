// What all units of an engine share.
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

// [Note: zero-copy gradients] in gradient_places.h. The last two reductions of such; the next one is
// recorded at `turn`. Compute waits there for the older one before it makes another, so that no
// more than two stand whole.
struct ZeroCopyWindow {
  explicit ZeroCopyWindow(const Device& device) : reduced{Event(device), Event(device)} {}

  std::array<Event, 2> reduced;
  int turn = 0;
  // On a device: what they lie in. The host runs ahead of the device, so whoever waited for a
  // reduction to end before it gave memory back would hold many.
  std::array<std::vector<std::shared_ptr<const void>>, 2> held;
};

struct ShardContext {
  ShardContext(Mesh mesh, const Options& options);
  ~ShardContext();
  ShardContext(const ShardContext&) = delete;
  ShardContext& operator=(const ShardContext&) = delete;

  const Mesh mesh;
  const bool debug;
  SpanLog spans;  // above the streams, whose last work writes here
  Communicators comms{mesh};
  CommStreams streams;
  EngineMemory memory;
  const std::unique_ptr<MainPlace> main;
  GradientFormat format;
  PeerReads peers;
  ZeroCopyWindow zero_copy{streams.device};
  // The trap is armed: what is handed out of main shards and main gradients is watched.
  bool watches_shards = false;
};

// The collectives of a unit with this strategy.
UnitCollectives collectives_for(const ShardContext& context, Strategy of);

}  // namespace fsdp
