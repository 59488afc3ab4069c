// MainStateWriter: writes host values into main shards and moments, on the device or on the host.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/buffer.h"
#include "shard/shard_context.h"

namespace fsdp {

// A writer for any thread, between passes. It follows the work issued to the engine's compute so
// far, on the engine's stream and not on the thread's.
class MainStateWriter {
 public:
  explicit MainStateWriter(const ShardContext& context);

  // Writes `values` to `to`, which is main state; done on return. Errors: as Stream::synchronize.
  void write(float* to, std::span<const float> values) const;

 private:
  Stream& stream_;
  const Buffer piece_;  // pinned
};

}  // namespace fsdp
