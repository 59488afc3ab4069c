// Collectives between processes of one host, through shared memory.
#pragma once

#include "comm/cpu/cpu_communicator.h"
#include "comm/job/job_memory.h"
#include "comm/shm/shared_heap.h"

namespace fsdp {

// A communicator of processes. Memory from allocate() is in this rank's heap, where peers read it
// in place. Other memory is copied to the heap's staging area.
class ShmCommunicator final : public CpuCommunicator {
 public:
  // `memory` and `heap` are shared with the rank's other communicators.
  ShmCommunicator(std::shared_ptr<const JobMember> member, RankGroup group,
                  std::shared_ptr<const JobMemory> memory, std::shared_ptr<SharedHeap> heap)
      : CpuCommunicator(std::move(member), group),
        memory_(std::move(memory)),
        heap_(std::move(heap)),
        staging_place_(SharedHeap::staging_of(group.channel)) {}

  Buffer allocate(int64_t bytes) override;
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return {.maps_ranks = true}; }

 private:
  std::unique_ptr<Communicator> make_group(std::shared_ptr<const JobMember> member,
                                           RankGroup group) const override;
  std::optional<uint64_t> publish(const void* data, int64_t bytes) const override;
  std::byte* resolve(int rank, uint64_t place) const override;
  uint64_t staging_place() override { return staging_place_; }

  std::shared_ptr<const JobMemory> memory_;
  std::shared_ptr<SharedHeap> heap_;
  uint64_t staging_place_;
};

}  // namespace fsdp
