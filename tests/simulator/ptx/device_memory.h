// The memory of a simulated device: which bytes are there, and what is known of them.
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
  bool only_read = false;                        // a write is an Objection, a read leaves no trace
  std::vector<std::unique_ptr<Shadow>> shadows;  // by 64 KiB of addresses; null: as at first
  uint64_t end() const { return begin + bytes; }
  Shadow& shadow_of(uint64_t address);
  std::string refused_write() const;
};

// Of one device; used by one thread at a time.
class DeviceMemory {
 public:
  // Requires: no overlap with what is there. `defined`: its bytes have values already.
  // What is known of it takes memory only where it is touched.
  void add(const void* begin, int64_t bytes, std::string name, bool defined);
  // The allocation that was added there, with all its parts.
  void remove(const void* begin);
  // A part of an allocation becomes one of its own, with undefined bytes. From then on only such
  // parts of it are memory.
  // Errors: Objection if the bytes are in no allocation, or some are in such a part.
  void carve(const void* begin, int64_t bytes, std::string name);
  void give_back(const void* part);
  void rename(const void* begin, std::string name);
  // Refuses writes to the allocation of this byte, which has values, and records no reads of it.
  void only_read(const void* begin) { require(begin, 1).only_read = true; }

  // The allocation that holds all of these bytes; null if there is none.
  Allocation* find(uint64_t address, int64_t bytes);
  // "4 bytes in losses, which was freed"; "4 bytes at 0x…, outside of device memory, 8 bytes behind
  // losses".
  std::string describe(uint64_t address, int64_t bytes) const;

  // Others than launches (a copy, a library of the host) write there, or read.
  // Errors: Objection if not all of the bytes are there, or if nobody has written what is read.
  void define(const void* begin, int64_t bytes);
  void undefine(const void* begin, int64_t bytes);
  void require_defined(const void* begin, int64_t bytes);

  // The number of a launch that begins: what earlier ones touched is forgotten.
  uint32_t begin_launch();
  // The shadow of bytes that the launch touches, which lie in one.
  Shadow& touch(Allocation& allocation, uint64_t address);
  // What it has touched, coalesced within each allocation, in ascending order.
  std::vector<ByteRange> touched(bool writes) const;

 private:
  struct Gone {
    uint64_t end = 0;
    std::string name;
    std::string what;  // has become of it
  };
  void lose(uint64_t begin, std::string what);
  Allocation& require(const void* begin, int64_t bytes);
  void for_each_shadow(const void* begin, int64_t bytes,
                       const std::function<void(Shadow&, uint64_t at, int64_t count)>& visit);

  std::map<uint64_t, std::unique_ptr<Allocation>> allocations_;  // by begin
  Allocation* found_last_ = nullptr;                             // one of them; null: none
  std::map<uint64_t, std::unique_ptr<Allocation>> carved_;       // whose parts are above
  std::map<uint64_t, Gone> gone_;                                // by begin
  std::map<uint64_t, const Shadow*> touched_;                    // by the launch, by begin
  uint32_t launches_ = 0;
};

}  // namespace fsdp::testing::ptx
