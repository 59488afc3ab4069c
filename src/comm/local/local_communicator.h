// Collectives between threads of one process.
#pragma once

#include "comm/cpu/cpu_communicator.h"
#include "runtime/buffer.h"

namespace fsdp {

// A communicator of threads. Threads can read any memory of the process in place. This class is the
// reference for the semantics of collectives.
class LocalCommunicator final : public CpuCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<const JobMember> member, RankGroup group)
      : CpuCommunicator(std::move(member), std::move(group)) {}

  Buffer allocate(int64_t bytes) override;

 private:
  std::unique_ptr<Communicator> make_group(std::shared_ptr<const JobMember> member,
                                           RankGroup group) const override;
  std::optional<uint64_t> publish(const void* data, int64_t bytes) const override;
  std::byte* resolve(int rank, uint64_t place) const override;
  uint64_t staging_place() override;

  Buffer staging_;  // empty until a part is sent in runs
};

}  // namespace fsdp
