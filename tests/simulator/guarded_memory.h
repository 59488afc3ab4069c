// Device memory that the host may not touch: its pages can be read and written only while work of
// a stream runs. Whatever else touches them (a loop of the host over a shard, a scalar that is read
// before it was asked for) is a fault that says where.
//
// Protection is the process's: while one thread's work runs, another's stray access goes unseen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "comm/shm/range_allocator.h"
#include "runtime/buffer.h"

namespace fsdp::testing {

class GuardedMemory {
 public:
  // The one of the process, which holds up to 2 GiB.
  static GuardedMemory& instance();

  // Zeroed, in whole pages. 0 bytes: an empty buffer.
  Buffer allocate(int64_t bytes);
  bool holds(const void* address) const;

  // Between the two, which nest and come from any thread, work of a stream runs.
  void open();
  void close();

  // From now on, and until others take the signal, a stray access prints its place.
  void watch();

 private:
  GuardedMemory();
  void give_back(int64_t offset);
  void protect(int64_t from, int64_t to, int access) const;
  // From begin_ to the end of the last that is taken. Opening and closing takes as long as this is
  // large, so that low ranges are handed out first.
  int64_t used() const {
    return taken_.empty() ? 0 : taken_.rbegin()->first + taken_.rbegin()->second;
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  RangeAllocator ranges_;
  std::map<int64_t, int64_t> taken_;  // offset -> bytes
  int64_t open_ = 0;
};

// Of the enclosing scope: what a test, or a library in its place, does with device memory by
// itself, as it would not on a device.
class AsDeviceWork {
 public:
  AsDeviceWork() { GuardedMemory::instance().open(); }
  ~AsDeviceWork() { GuardedMemory::instance().close(); }
  AsDeviceWork(const AsDeviceWork&) = delete;
  AsDeviceWork& operator=(const AsDeviceWork&) = delete;
};

}  // namespace fsdp::testing
