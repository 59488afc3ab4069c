// Values of the host into main shards and moments, wherever these lie.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/buffer.h"
#include "shard/shard_context.h"

namespace fsdp {

// From any thread, between passes: behind what the engine's compute was given so far, on its stream
// and not on the thread's.
class MainStateWriter {
 public:
  explicit MainStateWriter(const ShardContext& context);

  // `to` is main state. Done on return. Errors: as Stream::synchronize.
  void write(float* to, std::span<const float> values) const;

 private:
  Stream& stream_;
  const Buffer piece_;  // pinned
};

}  // namespace fsdp
