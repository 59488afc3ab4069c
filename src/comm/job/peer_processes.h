// Whether other ranks' processes, of this host, still run.
#pragma once

#include <optional>
#include <vector>

#include "comm/descriptor.h"
#include "comm/job/control_segment.h"

namespace fsdp {

// Thread-safe after construction.
class PeerProcesses {
 public:
  // `ranks`: those that are watched, all of this host.
  // Requires: their pids are in their statuses.
  // Errors: InvalidArgument (78) if this system cannot watch processes.
  PeerProcesses(const ControlSegment& control, const std::vector<int>& ranks);

  // True from the moment the process has ended, also if nobody has reaped it. Never of a rank that
  // is not watched.
  bool ended(int rank) const;

 private:
  // One a rank. Null: not watched; empty: it had ended before it was looked at.
  std::vector<std::optional<Descriptor>> processes_;
};

}  // namespace fsdp
