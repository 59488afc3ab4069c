// Collectives between threads that share one device: kernels of each rank read its peers' memory in
// place, and events order them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/cpu/group_barrier.h"
#include "runtime/stream.h"

namespace fsdp {

// The state that the ranks of one communicator share.
class DeviceMeeting;

// A communicator of threads that share one device.
//
// [Note: thread ranks of one device]
// All ranks issue a collective together. Each publishes where its parts are, and records on its
// stream that they are ready. The host threads pass a barrier and compare their collectives. Each
// rank lets its stream wait for its peers' events, issues one kernel that reads from all of them,
// and records that it has read. The host threads pass another barrier, and each rank lets its
// stream wait for the ranks that read from it. Nothing on the device waits for anything but
// recorded events, so that no kernel spins and no order of streams can block the device. A host
// thread waits for the issue of the collective, not for its work.
//
// Copies are one launch of cast_pack, reductions one of reduce: sums in rank order, the same bits
// as the other communicators. An all_reduce is shared as CpuCommunicator shares a large one.
class DeviceCommunicator final : public Communicator {
 public:
  // `meeting` is the group's; `device` outlives the communicator.
  DeviceCommunicator(std::shared_ptr<const JobMember> member, RankGroup group,
                     std::shared_ptr<DeviceMeeting> meeting, const Device& device);
  // Makes the shared state of a group of `size` ranks.
  static std::shared_ptr<DeviceMeeting> make_meeting(int size, const Device& device);

  int rank() const override { return barrier_.group().rank; }
  int size() const override { return barrier_.group().size(); }
  Buffer allocate(int64_t bytes) override;
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override;

 private:
  void meet(std::span<const CollectivePart> parts, const CollectiveRecord& record, Stream& stream);
  void move(const CollectiveRecord& record, Stream& stream) const;
  void spread_shares(Stream& stream) const;

  std::shared_ptr<const JobMember> member_;
  GroupBarrier barrier_;
  const std::shared_ptr<DeviceMeeting> meeting_;  // shared by the ranks of the group
  const Device& device_;
};

}  // namespace fsdp
