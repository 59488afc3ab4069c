// Who touched which bytes last, and what of it nothing orders.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "simulator/cuda/operation_log.h"
#include "simulator/ptx/shadow.h"

namespace fsdp::testing::sim {

// Two operations on common bytes, one of which writes, and neither waits for the other.
struct Conflict {
  const Operation* before = nullptr;  // ran first, this time
  const Operation* now = nullptr;
  bool before_writes = false, now_writes = false;
  ptx::ByteRange bytes;  // the first of them
};

// Operations come in an order in which they may run. Who is in order with the last write is in
// order with everything before it, so that is all that is kept, with each stream's last read since
// (as FastTrack does: Flanagan and Freund, 2009). A byte's first race is found for certain.
class AccessHistory {
 public:
  using Found = std::function<void(const Conflict&)>;

  void touch(const Operation& now, const ptx::ByteRange& bytes, bool writes, const Found& found);

 private:
  struct Segment {
    uint64_t end = 0;
    const Operation* writer = nullptr;      // null: none
    std::vector<const Operation*> readers;  // since, the last of each stream
  };
  using Segments = std::map<uint64_t, Segment>;  // by begin

  void cut(uint64_t address);
  void write(const Operation& now, const ptx::ByteRange& bytes, const Found& found);
  void read(const Operation& now, const ptx::ByteRange& bytes, const Found& found);

  Segments segments_;
};

}  // namespace fsdp::testing::sim
