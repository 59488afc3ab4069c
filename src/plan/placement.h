// How parameters, gradients and optimizer state lie on the ranks: a strategy is a row of this
// table.
#pragma once

#include <fsdp/options.h>

#include <cstdint>

namespace fsdp {

enum class Placement : uint8_t { kReplicate, kShard };

struct Placements {
  Placement parameters = Placement::kShard;
  Placement gradients = Placement::kShard;
  Placement optimizer = Placement::kShard;
};

// Errors: InvalidArgument for a value that is no strategy.
Placements placements_of(Strategy strategy);

}  // namespace fsdp
