// MemoryMeter: the device memory that one rank holds, the engine's and LibTorch's together, with a
// limit on the sum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/buffer.h"

namespace fsdp {

// The owner of a block: the engine (shards, slots, gradients, optimizer state), or LibTorch
// (activations, gradients in flight, temporaries of operators).
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
  MeteredBytes peaks;  // the highest of each by itself, not at one moment
};

// A demand that the limit has no room for.
struct MemoryDemand {
  int64_t bytes = 0;
  MemoryOwner of = MemoryOwner::kEngine;
  MeteredBytes now;  // before the demand
  int64_t limit = 0;
};

// Counts of bytes, and a limit. Thread-safe. Shared by its users and by the blocks that it has
// counted: a block is subtracted from the meter that counted it, whenever it is freed.
class MemoryMeter : public std::enable_shared_from_this<MemoryMeter> {
 public:
  // Counts `bytes` more. Errors: OutOfMemory, or an error of the refusal, if the total would exceed
  // the limit; the counts are unchanged then.
  void take(MemoryOwner of, int64_t bytes);
  void give(MemoryOwner of, int64_t bytes) noexcept;
  // Sets LibTorch's bytes, if its allocator counts them itself. They may exceed the limit, which
  // the next take() reports, even one of 0 bytes.
  void observe_torch(int64_t bytes);

  MeterReading reading() const;
  void reset_peak();

  // Limits the total to `bytes` from now on, 0: no limit. Blocks that are held already stay.
  void set_limit(int64_t bytes);
  int64_t limit() const;
  // Throws the error for a demand beyond the limit, in the thread that asks, without a lock. If it
  // returns, or is empty, take() throws OutOfMemory with describe().
  using Refuse = std::function<void(const MemoryDemand& demand)>;
  void set_refusal(Refuse refuse);
  bool has_refusal() const;

  // Returns "out of memory: 24.0 MiB more than the 20.5 MiB that the limit of 64.0 MiB leaves".
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

// Returns the buffer of `allocate`, counted as the engine's from before the call until the buffer
// is freed. Without a meter it is not counted. Errors: as MemoryMeter::take; those of `allocate`.
Buffer metered(const std::shared_ptr<MemoryMeter>& meter, int64_t bytes,
               const std::function<Buffer()>& allocate);

}  // namespace fsdp
