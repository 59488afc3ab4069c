// ShardContext holds the objects that all units of an engine share: streams, communicators, memory.
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
#include "shard/main_state_hold.h"
#include "shard/peer_reads.h"

namespace fsdp {

// The last two reductions of zero-copy gradients ([Note: zero-copy gradients] in
// gradient_places.h). `turn` is the index of the older reduction, which the next one replaces.
// Before another zero-copy gradient is made, the compute stream waits for this older reduction
// (wait 8), so at most two such gradients exist.
struct ZeroCopyWindow {
  explicit ZeroCopyWindow(const Device& device) : reduced{Event(device), Event(device)} {}

  std::array<Event, 2> reduced;
  int turn = 0;
  // The gradients that these reductions read. Used only if the compute stream is not inline. The
  // gradients are freed once compute's wait for the reduction is issued, because LibTorch reuses
  // memory in compute's order. If the host freed them only when the reduction has ended, it would
  // hold many gradients at a time, because it runs ahead of the device.
  std::array<std::vector<std::shared_ptr<const void>>, 2> held;
};

struct ShardContext {
  ShardContext(Mesh mesh, const Options& options);
  ~ShardContext();
  ShardContext(const ShardContext&) = delete;
  ShardContext& operator=(const ShardContext&) = delete;

  const Mesh mesh;
  const bool debug;
  const bool updates_in_backward;  // Options::optimizer_in_backward
  SpanLog spans;                   // outlives the streams, because their last work writes to it
  Communicators comms{mesh};
  CommStreams streams;
  EngineMemory memory;
  const std::unique_ptr<MainPlace> main;
  MainStateHold hold{*main};
  GradientFormat format;
  PeerReads peers;
  ZeroCopyWindow zero_copy{streams.device};
  // True if the trap is armed (touch_trap.h). Then views of main shards and main gradients carry
  // the trap's key.
  bool watches_shards = false;
};

// Returns the collectives of a unit with strategy `of`.
UnitCollectives collectives_for(const ShardContext& context, Strategy of);

}  // namespace fsdp
