// The last accesses to each byte. Finds accesses that are not ordered.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "simulator/cuda/operation_log.h"
#include "simulator/ptx/shadow.h"

namespace fsdp::testing::sim {

// Two operations that access common bytes, at least one as a write, and do not wait for each other.
struct Conflict {
  const Operation* before = nullptr;  // the operation that ran first in this execution
  const Operation* now = nullptr;
  bool before_writes = false, now_writes = false;
  ptx::ByteRange bytes;  // the first of the common bytes
};

// Requires: operations are passed in an order in which they may run. An operation that is ordered
// after the last write is also ordered after everything before that write. So the history keeps
// only the last write, and the last read of each stream since then. This is the method of FastTrack
// (Flanagan and Freund, 2009). It always finds a byte's first race.
class AccessHistory {
 public:
  using Found = std::function<void(const Conflict&)>;

  void touch(const Operation& now, const ptx::ByteRange& bytes, bool writes, const Found& found);

 private:
  struct Segment {
    uint64_t end = 0;
    const Operation* writer = nullptr;      // null: none
    std::vector<const Operation*> readers;  // the last read of each stream since the write
  };
  using Segments = std::map<uint64_t, Segment>;  // by begin

  void cut(uint64_t address);
  void write(const Operation& now, const ptx::ByteRange& bytes, const Found& found);
  void read(const Operation& now, const ptx::ByteRange& bytes, const Found& found);

  Segments segments_;
};

}  // namespace fsdp::testing::sim
