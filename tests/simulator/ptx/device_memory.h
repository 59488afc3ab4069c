// The memory of a simulated device: its allocations, and the state of their bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "simulator/ptx/shadow.h"

namespace fsdp::testing::ptx {

struct Allocation {
  std::string name;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  bool defined_at_first = false;
  bool only_read = false;  // writes are Objections, and reads are not recorded
  std::vector<std::unique_ptr<Shadow>> shadows;  // by 64 KiB of addresses; null: unchanged
  uint64_t end() const { return begin + bytes; }
  Shadow& shadow_of(uint64_t address);
  std::string refused_write() const;
};

// The memory of one device. Used by one thread at a time.
class DeviceMemory {
 public:
  // Adds an allocation. Requires: it overlaps no other allocation. If `defined`, its bytes already
  // have values. State of bytes uses host memory only for bytes that are accessed.
  void add(const void* begin, int64_t bytes, std::string name, bool defined);
  // Removes the allocation that begins at `begin`, with all its parts.
  void remove(const void* begin);
  // Makes a part of an allocation an allocation of its own, with undefined bytes. From then on,
  // only such parts of it are memory. Errors: Objection if no allocation contains the bytes, or if
  // they overlap another part.
  void carve(const void* begin, int64_t bytes, std::string name);
  void give_back(const void* part);
  void rename(const void* begin, std::string name);
  // Refuses later writes to the allocation that contains this byte, and stops recording reads of
  // it. Requires: its bytes have values.
  void only_read(const void* begin) { require(begin, 1).only_read = true; }

  // Returns the allocation that contains all of these bytes, or null.
  Allocation* find(uint64_t address, int64_t bytes);
  // Returns text such as "4 bytes in losses, which was freed" or "4 bytes at 0x…, outside of device
  // memory, 8 bytes behind losses".
  std::string describe(uint64_t address, int64_t bytes) const;

  // Record accesses of work that is not a launch, such as a copy or an operator of a host library.
  // Errors: Objection if some of the bytes do not exist, or if require_defined finds a byte without
  // a value.
  void define(const void* begin, int64_t bytes);
  void undefine(const void* begin, int64_t bytes);
  void require_defined(const void* begin, int64_t bytes);

  // Starts a launch and returns its number. The accesses of earlier launches are removed.
  uint32_t begin_launch();
  // Returns the shadow of bytes that the launch accesses. Requires: one shadow contains them all.
  Shadow& touch(Allocation& allocation, uint64_t address);
  // Returns the bytes that the launch accessed, in ascending order. Adjacent ranges of an
  // allocation are merged.
  std::vector<ByteRange> touched(bool writes) const;

 private:
  struct Gone {
    uint64_t end = 0;
    std::string name;
    std::string what;  // the reason, as in "was freed"
  };
  void lose(uint64_t begin, std::string what);
  Allocation& require(const void* begin, int64_t bytes);
  void for_each_shadow(const void* begin, int64_t bytes,
                       const std::function<void(Shadow&, uint64_t at, int64_t count)>& visit);

  std::map<uint64_t, std::unique_ptr<Allocation>> allocations_;  // by begin
  Allocation* found_last_ = nullptr;  // the last result of find, in allocations_; null: none
  std::map<uint64_t, std::unique_ptr<Allocation>> carved_;  // allocations that have parts
  std::map<uint64_t, Gone> gone_;                           // by begin
  std::map<uint64_t, const Shadow*> touched_;               // accessed by the launch; by begin
  uint32_t launches_ = 0;
};

}  // namespace fsdp::testing::ptx
