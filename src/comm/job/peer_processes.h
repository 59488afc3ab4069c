// Checks whether other ranks' processes on this host still run.
#pragma once

#include <optional>
#include <vector>

#include "base/descriptor.h"
#include "comm/job/control_segment.h"

namespace fsdp {

// The watched processes. Thread-safe after construction.
class PeerProcesses {
 public:
  // Opens the processes of `ranks`, which must be on this host. The status of each of these ranks
  // must have the rank's pid. Errors: InvalidArgument (78) if this system cannot watch processes.
  PeerProcesses(const ControlSegment& control, const std::vector<int>& ranks);

  // Returns true as soon as the process has ended, even before its parent has reaped it. Always
  // false for a rank that is not watched.
  bool ended(int rank) const;

 private:
  // The descriptors by rank. No value: the rank is not watched. A value without a descriptor: the
  // process ended before it was opened.
  std::vector<std::optional<Descriptor>> processes_;
};

}  // namespace fsdp
