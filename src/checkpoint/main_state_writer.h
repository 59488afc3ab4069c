// MainStateWriter: writes values from the host into main shards and moments, on the device or the
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/buffer.h"
#include "shard/shard_context.h"

namespace fsdp {

// A writer that any thread may use between passes. It issues its work on the engine's stream, not
// on the thread's current stream, so it runs after all work that was issued to that stream before.
class MainStateWriter {
 public:
  // Waits for copies of main state (MainStateHold).
  explicit MainStateWriter(ShardContext& context);

  // Writes `values` to `to`, an address in a main shard or in a moment. The write is complete on
  // return. Errors: those of Stream::synchronize.
  void write(float* to, std::span<const float> values) const {
    write(reinterpret_cast<std::byte*>(to), std::as_bytes(values));
  }
  void write(std::byte* to, std::span<const std::byte> bytes) const { write(stream_, to, bytes); }
  // Writes on `stream` instead of the engine's stream. This is for the main state of another engine
  // of the mesh, which has its own stream.
  void write(Stream& stream, std::byte* to, std::span<const std::byte> bytes) const;

 private:
  Stream& stream_;
  const Buffer piece_;  // pinned
};

}  // namespace fsdp
