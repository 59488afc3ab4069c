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
  bool only_read = false;                        // a write is an Objection, a read is not noted
  std::vector<std::unique_ptr<Shadow>> shadows;  // by 64 KiB of addresses; null: unchanged
  uint64_t end() const { return begin + bytes; }
  Shadow& shadow_of(uint64_t address);
  std::string refused_write() const;
};

// The memory of one device. Used by one thread at a time.
class DeviceMemory {
 public:
  // Adds an allocation. Requires: it overlaps no other one. `defined`: its bytes have values
  // already. The state of its bytes takes memory only where they are accessed.
  void add(const void* begin, int64_t bytes, std::string name, bool defined);
  // Removes the allocation added there, with all its parts.
  void remove(const void* begin);
  // Makes a part of an allocation an allocation of its own, with undefined bytes. From then on only
  // such parts of it are memory.
  // Errors: Objection if the bytes are in no allocation, or overlap another part.
  void carve(const void* begin, int64_t bytes, std::string name);
  void give_back(const void* part);
  void rename(const void* begin, std::string name);
  // Refuses writes to the allocation of this byte, and does not note reads of it. Requires: its
  // bytes have values.
  void only_read(const void* begin) { require(begin, 1).only_read = true; }

  // Returns the allocation that holds all of these bytes; null if there is none.
  Allocation* find(uint64_t address, int64_t bytes);
  // Returns text like "4 bytes in losses, which was freed" or "4 bytes at 0x…, outside of device
  // memory, 8 bytes behind losses".
  std::string describe(uint64_t address, int64_t bytes) const;

  // Note accesses of other work than launches (a copy, a library of the host).
  // Errors: Objection if not all of the bytes exist, or if require_defined finds a byte without a
  // value.
  void define(const void* begin, int64_t bytes);
  void undefine(const void* begin, int64_t bytes);
  void require_defined(const void* begin, int64_t bytes);

  // Starts a launch and returns its number. Forgets the accesses of earlier ones.
  uint32_t begin_launch();
  // Returns the shadow of bytes that the launch accesses. Requires: they are in one shadow.
  Shadow& touch(Allocation& allocation, uint64_t address);
  // Returns the launch's accesses, coalesced within each allocation, in ascending order.
  std::vector<ByteRange> touched(bool writes) const;

 private:
  struct Gone {
    uint64_t end = 0;
    std::string name;
    std::string what;  // the event that ended it
  };
  void lose(uint64_t begin, std::string what);
  Allocation& require(const void* begin, int64_t bytes);
  void for_each_shadow(const void* begin, int64_t bytes,
                       const std::function<void(Shadow&, uint64_t at, int64_t count)>& visit);

  std::map<uint64_t, std::unique_ptr<Allocation>> allocations_;  // by begin
  Allocation* found_last_ = nullptr;                             // in allocations_; null: none
  std::map<uint64_t, std::unique_ptr<Allocation>> carved_;       // wholes of the parts above
  std::map<uint64_t, Gone> gone_;                                // by begin
  std::map<uint64_t, const Shadow*> touched_;                    // by the launch, by begin
  uint32_t launches_ = 0;
};

}  // namespace fsdp::testing::ptx
