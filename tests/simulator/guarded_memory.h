// Device memory that the host may not access. Its pages are readable and writable only while work
// of a stream runs. Any other access is a fault that prints its code position. Examples are a host
// loop over a shard, and a read of a scalar before it was requested.
//
// Protection applies to the whole process. So while one thread's work runs, an access by another
// thread is not detected.
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
  // Returns the only object of the process. It can hold up to 2 GiB.
  static GuardedMemory& instance();

  // Returns zeroed memory in whole pages. If `bytes` is 0, returns an empty buffer.
  Buffer allocate(int64_t bytes);
  bool holds(const void* address) const;

  // Open and close the memory. Work of a stream runs between the two calls. They nest, and any
  // thread may call them.
  void open();
  void close();

  // Installs a signal handler that prints the code position of an access outside of work. It is
  // active until another handler replaces it.
  void watch();

 private:
  GuardedMemory();
  void give_back(int64_t offset);
  void protect(int64_t from, int64_t to, int access) const;
  // Returns the number of bytes from begin_ to the end of the last allocation. The time to open and
  // close grows with it, so low ranges are allocated first.
  int64_t used() const {
    return taken_.empty() ? 0 : taken_.rbegin()->first + taken_.rbegin()->second;
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  RangeAllocator ranges_;
  std::map<int64_t, int64_t> taken_;  // offset -> bytes
  int64_t open_ = 0;
};

// A scope in which the host may access device memory. Tests use it, and libraries that stand in for
// the device, because they do the device's work themselves.
class AsDeviceWork {
 public:
  AsDeviceWork() { GuardedMemory::instance().open(); }
  ~AsDeviceWork() { GuardedMemory::instance().close(); }
  AsDeviceWork(const AsDeviceWork&) = delete;
  AsDeviceWork& operator=(const AsDeviceWork&) = delete;
};

}  // namespace fsdp::testing
