// BufferPool holds slots: buffers that units acquire for a part of a step and release.
//
// Slots form classes by size. The plan sets the number of slots of each class. A slot is allocated
// at its first use and kept, so that steps after the first allocate nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "memory/memory_ledger.h"
#include "runtime/device.h"

namespace fsdp {

struct Slot : std::enable_shared_from_this<Slot> {
  Slot(Buffer memory, const Device& device) : buffer(std::move(memory)), released(device) {}
  Buffer buffer;
  // Recorded at release, on the stream of the last use. The stream of the next use waits for it.
  Event released;

  std::byte* at(int64_t offset_bytes) const { return buffer.at(offset_bytes); }
};

// The order in which free slots are reused. The slot released last is warm in the cache. If streams
// run beside each other, work is more likely to be done with the slot released first.
enum class SlotReuse : uint8_t { kLastReturned, kFirstReturned };

// Not thread-safe: the engine's mutex guards it.
class BufferPool {
 public:
  using Allocate = std::function<Buffer(int64_t bytes)>;
  // Slots are used by streams of `device`.
  BufferPool(const Device& device, MemoryCategory category, MemoryLedger& ledger, SlotReuse reuse,
             Allocate allocate);

  // Sets the number of slots of each size in bytes; other sizes get none. Surplus slots are freed
  // as soon as they are released.
  void plan(const std::map<int64_t, int64_t>& count_by_bytes);
  std::vector<PlannedSlots> planned() const;
  // Returns true if more slots were in use at once than planned, since the plan was made or since
  // the last call. Later plans then allow as many.
  bool learn();

  // Returns a slot in any case (demand). Beyond the plan it is an overflow, which the ledger
  // counts. 0 bytes: null.
  Slot* acquire(int64_t bytes);
  // Returns a slot if the plan has a free one, else null (prefetch).
  Slot* try_acquire(int64_t bytes);
  // Makes the slot free; it may be null. Requires: slot->released is recorded.
  void release(Slot* slot);

 private:
  struct SizeClass {
    int64_t planned = 0;
    int64_t learned = 0;
    int64_t in_use = 0;
    int64_t most_in_use = 0;                   // since plan() or learn()
    std::vector<std::shared_ptr<Slot>> slots;  // all that exist; shared with views of gradients
    std::vector<Slot*> free;                   // in the order of release
    int64_t existing() const { return static_cast<int64_t>(slots.size()); }
  };
  Slot* take(int64_t bytes, SizeClass& size_class);
  void trim(int64_t bytes, SizeClass& size_class);

  const Device& device_;
  MemoryCategory category_;
  MemoryLedger& ledger_;
  SlotReuse reuse_;
  Allocate allocate_;
  std::map<int64_t, SizeClass> classes_;
};

}  // namespace fsdp
