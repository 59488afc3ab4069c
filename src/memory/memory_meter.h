// What one rank holds of its device's memory, the engine's and LibTorch's together, and a limit for
// the sum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/buffer.h"

namespace fsdp {

// Whose a block is: the engine's (shards, slots, gradients, optimizer state), or LibTorch's
// (activations, gradients on their way, whatever operators make).
enum class MemoryOwner : uint8_t { kEngine, kTorch };

struct MeteredBytes {
  int64_t engine = 0;
  int64_t torch = 0;

  int64_t total() const { return engine + torch; }
  bool operator==(const MeteredBytes&) const = default;
};

struct MeterReading {
  MeteredBytes now;
  MeteredBytes peak;   // at the highest total since construction or reset_peak
  MeteredBytes peaks;  // the highest of each by itself: not of one moment
};

// Bytes that the limit has no room for.
struct MemoryDemand {
  int64_t bytes = 0;
  MemoryOwner of = MemoryOwner::kEngine;
  MeteredBytes now;  // without them
  int64_t limit = 0;
};

// Thread-safe. Shared by whoever counts into it and by the blocks that it has counted: a block is
// given back to the meter that it was taken from, whenever that is.
class MemoryMeter : public std::enable_shared_from_this<MemoryMeter> {
 public:
  // `bytes` more are held. Errors: OutOfMemory, or what the refusal throws, where the total would
  // pass the limit; nothing has changed then.
  void take(MemoryOwner of, int64_t bytes);
  void give(MemoryOwner of, int64_t bytes) noexcept;
  // LibTorch's are `bytes`, where its allocator counts by itself. May pass the limit, which the
  // next demand tells, be it of 0 bytes.
  void observe_torch(int64_t bytes);

  MeterReading reading() const;
  void reset_peak();

  // No more than `bytes` in all from now on, 0: no limit; what is held already stays.
  void set_limit(int64_t bytes);
  int64_t limit() const;
  // Throws what a demand beyond the limit ends with, in the thread that asks, without a lock.
  // Where it returns, or is empty: OutOfMemory with describe().
  using Refuse = std::function<void(const MemoryDemand& demand)>;
  void set_refusal(Refuse refuse);
  bool has_refusal() const;

  // "out of memory: 24.0 MiB more than the 20.5 MiB that the limit of 64.0 MiB leaves".
  static std::string describe(const MemoryDemand& demand);

 private:
  static int64_t& part(MeteredBytes& bytes, MemoryOwner of) {
    return of == MemoryOwner::kEngine ? bytes.engine : bytes.torch;
  }

  void count_peaks();

  mutable std::mutex mutex_;
  MeterReading reading_;
  int64_t limit_ = 0;
  Refuse refuse_;
};

// What `allocate` returns, counted as the engine's from before it is asked until the buffer goes.
// Without a meter: the buffer itself. Errors: as MemoryMeter::take; what `allocate` throws.
Buffer metered(const std::shared_ptr<MemoryMeter>& meter, int64_t bytes,
               const std::function<Buffer()>& allocate);

}  // namespace fsdp
