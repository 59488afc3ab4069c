// Whether the other ranks' processes still run.
#pragma once

#include <vector>

#include "comm/cpu/control_segment.h"
#include "comm/descriptor.h"

namespace fsdp {

// Thread-safe after construction.
class PeerProcesses {
 public:
  // Requires: every rank's pid is in its status.
  // Errors: InvalidArgument (78) if this system cannot watch processes.
  explicit PeerProcesses(const ControlSegment& control);

  // True from the moment the process has ended, also if nobody has reaped it.
  bool ended(int rank) const;

 private:
  std::vector<Descriptor> processes_;  // one a rank; empty: it had ended before it was looked at
};

}  // namespace fsdp
