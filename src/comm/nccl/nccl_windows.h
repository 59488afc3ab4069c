// Memory that the ranks of an NCCL communicator register with NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "comm/nccl/nccl_session.h"
#include "runtime/buffer.h"

namespace fsdp {

// The windows of one NCCL communicator.
//
// [Note: registered memory] A window is memory from NCCL (ncclMemAlloc) that all ranks of a
// communicator register together. Each GPU reads and writes the windows of the others in place.
// This works only if all ranks use the same offset of the same window. So a window must be memory
// that all ranks allocate and use in the same order. Slots into which parameters are gathered
// qualify, because all ranks use them in the same order. Slots of gradients do not qualify, because
// gradients arrive in any order. Registration is a collective, and deregistration is not. Each rank
// deregisters a window when no collective uses the memory any more, before the memory is freed and
// before the communicator ends.
class NcclWindows {
 public:
  NcclWindows(std::shared_ptr<NcclSession> session, NcclSession::MemberPtr member)
      : session_(std::move(session)), member_(std::move(member)) {}

  // Allocates a zeroed window. Collective.
  // Errors: OutOfMemory, which only this rank throws: the other ranks wait until their time-out has
  //   passed. DeviceError, on all ranks, if these GPUs cannot access each other's memory. Also the
  //   errors of NcclSession::issue.
  Buffer allocate(int64_t bytes) const;

 private:
  Buffer allocate_unregistered(int64_t bytes) const;

  const std::shared_ptr<NcclSession> session_;
  const NcclSession::MemberPtr member_;
};

}  // namespace fsdp
