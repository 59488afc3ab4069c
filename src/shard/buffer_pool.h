// BufferPool holds slots. A slot is a buffer that a unit acquires for a part of a step and then
// releases.
//
// Slots form classes by size. The plan sets the number of slots of each class. A slot is allocated
// at its first use and kept, so steps after the first step allocate nothing.
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
  // The event is recorded at release, on the stream that used the slot last. The stream that uses
  // the slot next waits for it.
  Event released;

  std::byte* at(int64_t offset_bytes) const { return buffer.at(offset_bytes); }
};

// The order in which free slots are reused. kLastReturned: the slot released last is warm in the
// cache. kFirstReturned is for streams that run concurrently: work on the slot released first is
// more likely to be done.
enum class SlotReuse : uint8_t { kLastReturned, kFirstReturned };

// A pool of slots. Not thread-safe: the engine's mutex guards it.
class BufferPool {
 public:
  using Allocate = std::function<Buffer(int64_t bytes)>;
  // The streams that use the slots must be streams of `device`.
  BufferPool(const Device& device, MemoryCategory category, MemoryLedger& ledger, SlotReuse reuse,
             Allocate allocate);

  // Sets the number of slots for each size in bytes. Sizes that are not listed get no slots.
  // Surplus slots are freed as soon as they are released.
  void plan(const std::map<int64_t, int64_t>& count_by_bytes);
  std::vector<PlannedSlots> planned() const;
  // Returns true if, since the last call of plan or learn, more slots were in use at once than
  // planned. In this case later plans allow this larger number of slots.
  bool learn();

  // Returns a slot even if the plan has no free one (a demand). A slot beyond the plan is an
  // overflow, and the ledger counts it. Returns null if `bytes` is 0.
  Slot* acquire(int64_t bytes);
  // Returns a slot if the plan has a free one, otherwise null (a prefetch).
  Slot* try_acquire(int64_t bytes);
  // Makes the slot free. Requires: `slot` is null, or the caller has recorded slot->released after
  // the last use.
  void release(Slot* slot);

 private:
  struct SizeClass {
    int64_t planned = 0;
    int64_t learned = 0;
    int64_t in_use = 0;
    int64_t most_in_use = 0;                   // since the last plan() or learn()
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
