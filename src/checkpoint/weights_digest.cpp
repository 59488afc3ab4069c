#include "checkpoint/weights_digest.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "engine/engine_parts.h"
#include "kernels/element/digest.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

constexpr size_t kStagedNumel = 256 * 1024;

// Computes FNV-1a. This hash is stored in files, so it must never change. Therefore it is separate
// from the hash by which ranks compare their collectives.
uint64_t hash_of_name(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char each : text) hash = (hash ^ static_cast<uint8_t>(each)) * 0x100000001b3;
  return hash;
}

// Returns the digest of elements [begin, begin + numel) of a parameter. `name` is the hash of its
// FQN.
uint64_t digest_of(const std::vector<float>& values, size_t numel, uint64_t name, int64_t begin) {
  uint64_t sum = 0;
  for (size_t i = 0; i < numel; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    sum += kernels::digest_term(name ^ bits, begin + static_cast<int64_t>(i));
  }
  return sum;
}

}  // namespace

uint64_t digest_of_weights(const EngineParts& engine) {
  Stream& stream = engine.context->main->stream();
  const int rank = engine.context->mesh.rank();
  // Data is read in chunks, which bounds the host memory for shards of any size.
  std::vector<float> piece(kStagedNumel);
  uint64_t own = 0;
  for (const auto& unit : engine.model.units) {
    const ShardUnit& shard = *unit->shard;
    // If several ranks replicate a slice, only the lowest of these ranks adds it.
    if (shard.collectives().first_holder(rank) != rank) continue;
    const std::lock_guard lock(engine.scheduler->mutex);
    const auto read = [&](float* data, size_t numel) {
      with_place(
          [&] { return unit->describe("digest of the weights"); },
          [&] { stream.read(piece.data(), data, static_cast<int64_t>(numel * sizeof(float))); });
    };
    const ShardLayout& layout = shard.layout();
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      const int parameter = static_cast<int>(i);
      const Interval& local = shard.main().local(parameter);
      const uint64_t name = hash_of_name(layout.parameters()[i].fqn);
      float* data = shard.main().data(layout.segment_of(parameter)) + local.offset;
      for (int64_t at = 0; at < local.numel; at += static_cast<int64_t>(kStagedNumel)) {
        const auto numel = static_cast<size_t>(
            std::min<int64_t>(local.numel - at, static_cast<int64_t>(kStagedNumel)));
        // read() has synchronized the stream, so `piece` may be overwritten.
        read(data + at, numel);
        own += digest_of(piece, numel, name, local.begin + at);
      }
    }
  }
  // Sums of unsigned integers wrap, so neither the order of ranks nor an overflow changes the
  // result.
  const auto sent = static_cast<int64_t>(own);
  uint64_t sum = 0;
  for (const int64_t each : engine.context->mesh.gather({&sent, 1}, "digest of the weights")) {
    sum += static_cast<uint64_t>(each);
  }
  return sum;
}

}  // namespace fsdp
