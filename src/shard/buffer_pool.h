// Slots: buffers that units borrow for a part of a step and give back.
//
// Slots come in classes of one size; the plan says how many of each class there are. They are
// allocated when first used and kept, so that no step after the first reaches the system.
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
  // Recorded by the last user when it gave the slot back; the next user's stream waits for it.
  Event released;

  std::byte* at(int64_t offset_bytes) const { return buffer.at(offset_bytes); }
};

// Which free slot is taken next. The one returned last is warm in the cache, but on streams that
// run beside each other the one returned first is the likeliest to be free already.
enum class SlotReuse : uint8_t { kLastReturned, kFirstReturned };

// Not thread-safe: the engine's mutex covers it.
class BufferPool {
 public:
  using Allocate = std::function<Buffer(int64_t bytes)>;
  // Slots are taken and given back by streams of `device`.
  BufferPool(const Device& device, MemoryCategory category, MemoryLedger& ledger, SlotReuse reuse,
             Allocate allocate);

  // Allows this many slots by size in bytes, and no others. Slots that the plan no longer allows go
  // back to the system as they become free.
  void plan(const std::map<int64_t, int64_t>& count_by_bytes);
  std::vector<PlannedSlots> planned() const;
  // Where more slots were out at once, since the plan was made or the last call, than it allows,
  // plans made from now on allow as many. Returns whether there were.
  bool learn();

  // A demand: always served. Beyond the plan it is an overflow, counted in the ledger. 0 bytes:
  // null.
  Slot* acquire(int64_t bytes);
  // A prefetch: null unless the plan has a slot to spare.
  Slot* try_acquire(int64_t bytes);
  // `slot` may be null. Requires: slot->released is recorded.
  void release(Slot* slot);

 private:
  struct SizeClass {
    int64_t planned = 0;
    int64_t learned = 0;
    int64_t in_use = 0;
    int64_t most_in_use = 0;                   // since plan() or learn()
    std::vector<std::shared_ptr<Slot>> slots;  // all that exist; shared with gradients' views
    std::vector<Slot*> free;                   // in the order of return
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
