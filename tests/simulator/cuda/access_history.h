// The last accesses to each byte, and accesses that nothing orders.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "simulator/cuda/operation_log.h"
#include "simulator/ptx/shadow.h"

namespace fsdp::testing::sim {

// Two operations on common bytes, one of which writes; neither waits for the other.
struct Conflict {
  const Operation* before = nullptr;  // ran first in this run
  const Operation* now = nullptr;
  bool before_writes = false, now_writes = false;
  ptx::ByteRange bytes;  // the first of the common bytes
};

// Requires: operations are passed in an order in which they may run. An operation ordered after the
// last write is ordered after everything before it. So only the last write is kept, with each
// stream's last read since (as FastTrack does: Flanagan and Freund, 2009). A byte's first race is
// always found.
class AccessHistory {
 public:
  using Found = std::function<void(const Conflict&)>;

  void touch(const Operation& now, const ptx::ByteRange& bytes, bool writes, const Found& found);

 private:
  struct Segment {
    uint64_t end = 0;
    const Operation* writer = nullptr;      // null: none
    std::vector<const Operation*> readers;  // the last read of each stream since
  };
  using Segments = std::map<uint64_t, Segment>;  // by begin

  void cut(uint64_t address);
  void write(const Operation& now, const ptx::ByteRange& bytes, const Found& found);
  void read(const Operation& now, const ptx::ByteRange& bytes, const Found& found);

  Segments segments_;
};

}  // namespace fsdp::testing::sim
