// The memory of a simulated device, byte for byte: what is defined, and who touched it in a launch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::testing::ptx {

// The last accesses of a launch to two neighbouring bytes. A thread is its number in the launch.
struct Cell {
  static constexpr int32_t kNobody = -1;
  static constexpr int32_t kSeveral = -2;
  uint32_t launch = 0;  // of another one: the cell is as new
  int32_t writer = kNobody;
  int32_t reader = kNobody;
  int32_t reader_block = kNobody;
  uint32_t written_at = 0;  // Epoch::at_once
  uint32_t read_at = 0;
  uint8_t written = 0;  // which of the two bytes
  uint8_t read = 0;
};

struct Allocation {
  std::string name;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  std::vector<bool> defined;  // has been written, by the host or by work
  std::vector<Cell> cells;    // one for two bytes
  uint64_t end() const { return begin + bytes; }
};

// Of one device; used by one thread at a time.
class DeviceMemory {
 public:
  // Requires: no overlap with what is there. `defined`: its bytes have values already.
  void add(const void* begin, int64_t bytes, std::string name, bool defined);
  void remove(const void* begin);
  // The host, a copy or a collective has written there.
  void define(const void* begin, int64_t bytes);
  // Errors: Objection if these bytes are not there, or if nobody has written one of them.
  void require_defined(const void* begin, int64_t bytes);

  // The allocation that holds all of these bytes; null if there is none.
  Allocation* find(uint64_t address, int64_t bytes);

  // The number of a launch that begins: the cells of earlier ones are as new.
  uint32_t begin_launch() { return ++launches_; }

 private:
  std::map<uint64_t, std::unique_ptr<Allocation>> allocations_;  // by begin
  uint32_t launches_ = 0;
};

}  // namespace fsdp::testing::ptx
