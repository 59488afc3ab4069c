// Memory that the ranks of an NCCL communicator register with it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "comm/nccl/nccl_session.h"
#include "runtime/buffer.h"

namespace fsdp {

// [Note: registered memory]
// A window is memory of NCCL's own (ncclMemAlloc) that all ranks of a communicator register at
// once: then each GPU reads and writes the others' where it lies, if all ranks use the same place
// of the same window. So windows are what all ranks take in one order and use in one order: slots
// into which parameters are gathered, whose order the policy of a pass makes, and not those of
// gradients, which arrive in any. Registering is a collective; giving back is not, and comes when
// no collective uses the memory any more: before the memory goes, and before the communicator ends.
class NcclWindows {
 public:
  NcclWindows(std::shared_ptr<NcclSession> session, NcclSession::MemberPtr member)
      : session_(std::move(session)), member_(std::move(member)) {}

  // Zeroed. Collective.
  // Errors: OutOfMemory, on this rank alone: the others wait until their time is over; DeviceError,
  //   on all ranks, where these GPUs cannot reach each other's memory; as NcclSession::issue.
  Buffer allocate(int64_t bytes) const;

 private:
  Buffer allocate_unregistered(int64_t bytes) const;

  const std::shared_ptr<NcclSession> session_;
  const NcclSession::MemberPtr member_;
};

}  // namespace fsdp
