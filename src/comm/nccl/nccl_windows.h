// Memory that the ranks of an NCCL communicator register with it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "comm/nccl/nccl_session.h"
#include "runtime/buffer.h"

namespace fsdp {

// The windows of one NCCL communicator.
//
// [Note: registered memory]
// A window is memory of NCCL's own (ncclMemAlloc) that all ranks of a communicator register
// together. Each GPU then reads and writes the others' windows in place, provided that all ranks
// use the same offset of the same window. So only memory that all ranks allocate and use in one
// order can be a window: slots into which parameters are gathered, whose order the pass determines,
// but not those of gradients, which arrive in any order. Registration is a collective.
// Deregistration is not; it happens when no collective uses the memory any more, before the memory
// is freed and before the communicator ends.
class NcclWindows {
 public:
  NcclWindows(std::shared_ptr<NcclSession> session, NcclSession::MemberPtr member)
      : session_(std::move(session)), member_(std::move(member)) {}

  // Allocates a zeroed window. Collective.
  // Errors: OutOfMemory, on this rank alone: the others wait until their time is over; DeviceError,
  //   on all ranks, if these GPUs cannot reach each other's memory; as NcclSession::issue.
  Buffer allocate(int64_t bytes) const;

 private:
  Buffer allocate_unregistered(int64_t bytes) const;

  const std::shared_ptr<NcclSession> session_;
  const NcclSession::MemberPtr member_;
};

}  // namespace fsdp
