// Checks whether other ranks' processes on this host still run.
#pragma once

#include <optional>
#include <vector>

#include "comm/descriptor.h"
#include "comm/job/control_segment.h"

namespace fsdp {

// The watched processes. Thread-safe after construction.
class PeerProcesses {
 public:
  // Opens the processes of `ranks`, all of this host.
  // Requires: their pids are in their statuses.
  // Errors: InvalidArgument (78) if this system cannot watch processes.
  PeerProcesses(const ControlSegment& control, const std::vector<int>& ranks);

  // Returns true from the moment the process has ended, also before its parent has reaped it;
  // always false for a rank that is not watched.
  bool ended(int rank) const;

 private:
  // By rank. Null: not watched; empty: ended before it was opened.
  std::vector<std::optional<Descriptor>> processes_;
};

}  // namespace fsdp
