// MemoryMeter counts the device memory of one rank (the engine's bytes plus LibTorch's bytes) and
// limits the sum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/buffer.h"

namespace fsdp {

// The owner of a block: the engine (shards, slots, gradients, optimizer state), or LibTorch
// (activations, gradients that are not captured yet, temporaries of operators).
enum class MemoryOwner : uint8_t { kEngine, kTorch };

struct MeteredBytes {
  int64_t engine = 0;
  int64_t torch = 0;

  int64_t total() const { return engine + torch; }
  bool operator==(const MeteredBytes&) const = default;
};

struct MeterReading {
  MeteredBytes now;
  MeteredBytes peak;   // both values at the highest total since construction or reset_peak
  MeteredBytes peaks;  // the highest value of each owner, not at one moment
};

// A request for memory that would exceed the limit.
struct MemoryDemand {
  int64_t bytes = 0;
  MemoryOwner of = MemoryOwner::kEngine;
  MeteredBytes now;  // bytes in use before the demand
  int64_t limit = 0;
};

// Counts of bytes, and a limit. Thread-safe. The meter exists as long as a user of the meter or a
// counted block exists. When a block is freed, its bytes are subtracted from the meter that counted
// them.
class MemoryMeter : public std::enable_shared_from_this<MemoryMeter> {
 public:
  // Adds `bytes` to the count. Errors: OutOfMemory, or the error that the Refuse function throws,
  // if the total would exceed the limit. In this case the counts do not change.
  void take(MemoryOwner of, int64_t bytes);
  void give(MemoryOwner of, int64_t bytes) noexcept;
  // Sets the number of LibTorch's bytes, for devices whose LibTorch allocator has its own count.
  // The total may then exceed the limit. In this case the next take() throws, even if it requests 0
  // bytes.
  void observe_torch(int64_t bytes);

  MeterReading reading() const;
  void reset_peak();

  // Limits the total to `bytes` from now on. 0 means no limit. Blocks that are already allocated
  // are not affected.
  void set_limit(int64_t bytes);
  int64_t limit() const;
  // A function that throws the error for a demand beyond the limit. The function is called on the
  // thread that requests memory, without a lock. If the function returns, or if it is empty, take()
  // throws OutOfMemory with the text of describe().
  using Refuse = std::function<void(const MemoryDemand& demand)>;
  void set_refusal(Refuse refuse);
  bool has_refusal() const;

  // Returns a text like "out of memory: 24.0 MiB are needed, but the limit of 64.0 MiB leaves 20.5
  // MiB".
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

// Calls `allocate` and returns its buffer. The bytes count as the engine's bytes, from before the
// call until the buffer is freed. If `meter` is null, nothing is counted. Errors: those of
// MemoryMeter::take and of `allocate`.
Buffer metered(const std::shared_ptr<MemoryMeter>& meter, int64_t bytes,
               const std::function<Buffer()>& allocate);

}  // namespace fsdp
