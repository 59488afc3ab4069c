#include "shard/buffer_pool.h"

#include <algorithm>
#include <exception>

namespace fsdp {

BufferPool::BufferPool(const Device& device, MemoryCategory category, MemoryLedger& ledger,
                       SlotReuse reuse, Allocate allocate)
    : device_(device),
      category_(category),
      ledger_(ledger),
      reuse_(reuse),
      allocate_(std::move(allocate)) {}

void BufferPool::plan(const std::map<int64_t, int64_t>& count_by_bytes) {
  for (auto& [bytes, size_class] : classes_) {
    size_class.planned = size_class.learned;
    // The peak starts again at the present use, because a peak under the old plan must not count as
    // an excess over the new plan.
    size_class.most_in_use = size_class.in_use;
  }
  for (const auto& [bytes, count] : count_by_bytes) {
    SizeClass& size_class = classes_[bytes];
    size_class.planned = std::max(count, size_class.learned);
  }
  for (auto& [bytes, size_class] : classes_) trim(bytes, size_class);
}

bool BufferPool::learn() {
  bool exceeds = false;
  for (auto& [bytes, size_class] : classes_) {
    if (size_class.most_in_use > size_class.planned) {
      size_class.learned = size_class.most_in_use;
      exceeds = true;
    }
    size_class.most_in_use = size_class.in_use;
  }
  return exceeds;
}

std::vector<PlannedSlots> BufferPool::planned() const {
  std::vector<PlannedSlots> planned;
  for (const auto& [bytes, size_class] : classes_) {
    if (size_class.planned > 0) planned.push_back({category_, bytes, size_class.planned});
  }
  return planned;
}

Slot* BufferPool::acquire(int64_t bytes) {
  if (bytes == 0) return nullptr;
  SizeClass& size_class = classes_[bytes];
  if (size_class.in_use >= size_class.planned) ledger_.count_overflow();
  return take(bytes, size_class);
}

// A prefetch never makes more slots be in use than planned, even if a free slot exists.
Slot* BufferPool::try_acquire(int64_t bytes) {
  SizeClass& size_class = classes_[bytes];
  return size_class.in_use < size_class.planned ? take(bytes, size_class) : nullptr;
}

Slot* BufferPool::take(int64_t bytes, SizeClass& size_class) {
  Slot* slot = nullptr;
  // A stream may still use a slot that was released, so its next user may have to wait. If the plan
  // allows one more slot, a new slot is allocated and avoids this wait.
  const bool fresh =
      reuse_ == SlotReuse::kFirstReturned && size_class.existing() < size_class.planned;
  if (!size_class.free.empty() && !fresh) {
    const auto next =
        reuse_ == SlotReuse::kLastReturned ? size_class.free.end() - 1 : size_class.free.begin();
    slot = *next;
    size_class.free.erase(next);
  } else {
    size_class.slots.push_back(std::make_shared<Slot>(allocate_(bytes), device_));
    slot = size_class.slots.back().get();
    ledger_.hold(bytes);
  }
  size_class.most_in_use = std::max(size_class.most_in_use, ++size_class.in_use);
  ledger_.take(category_, bytes);
  return slot;
}

// The host does not wait for the slot's last use. Instead, the stream that uses the slot next waits
// for slot->released.
void BufferPool::release(Slot* slot) {
  if (slot == nullptr) return;
  const int64_t bytes = slot->buffer.bytes();
  SizeClass& size_class = classes_.at(bytes);
  --size_class.in_use;
  size_class.free.push_back(slot);
  ledger_.give(category_, bytes);
  trim(bytes, size_class);
}

void BufferPool::trim(int64_t bytes, SizeClass& size_class) {
  while (size_class.existing() > size_class.planned && !size_class.free.empty()) {
    Slot* slot = size_class.free.front();
    // The memory is freed and not reused, so the host must wait until the last use is done.
    try {
      slot->released.synchronize();
    } catch (const std::exception&) {
      // A failed stream runs nothing more, so no work uses the slot. Later waits for the stream
      // report the error.
    }
    size_class.free.erase(size_class.free.begin());
    std::erase_if(size_class.slots, [&](const auto& owned) { return owned.get() == slot; });
    ledger_.hold(-bytes);
  }
}

}  // namespace fsdp
