// Device memory that the host may not access: its pages are readable and writable only while
// work of a stream runs. Any other access (a loop of the host over a shard, a scalar read before it
// was requested) is a fault that prints its place.
//
// Protection applies to the process: while one thread's work runs, another thread's access is not
// detected.
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
  // Returns the only one of the process; it holds up to 2 GiB.
  static GuardedMemory& instance();

  // Returns zeroed memory in whole pages; an empty buffer for 0 bytes.
  Buffer allocate(int64_t bytes);
  bool holds(const void* address) const;

  // Work of a stream runs between the two. They nest, and any thread may call them.
  void open();
  void close();

  // Installs a signal handler: an access outside of work prints its place, until another handler
  // replaces it.
  void watch();

 private:
  GuardedMemory();
  void give_back(int64_t offset);
  void protect(int64_t from, int64_t to, int access) const;
  // Returns the bytes from begin_ to the end of the last allocation. Opening and closing takes time
  // in proportion to them, so low ranges are allocated first.
  int64_t used() const {
    return taken_.empty() ? 0 : taken_.rbegin()->first + taken_.rbegin()->second;
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  RangeAllocator ranges_;
  std::map<int64_t, int64_t> taken_;  // offset -> bytes
  int64_t open_ = 0;
};

// A scope in which the host may access device memory: a test, or a library that stands for the
// device, does the device's work by itself.
class AsDeviceWork {
 public:
  AsDeviceWork() { GuardedMemory::instance().open(); }
  ~AsDeviceWork() { GuardedMemory::instance().close(); }
  AsDeviceWork(const AsDeviceWork&) = delete;
  AsDeviceWork& operator=(const AsDeviceWork&) = delete;
};

}  // namespace fsdp::testing
