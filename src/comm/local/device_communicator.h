// Collectives between threads whose memory lies on one device: kernels of each rank read its peers'
// memory where it lies, and events order them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/cpu/group_barrier.h"
#include "runtime/stream.h"

namespace fsdp {

// What the ranks of one communicator show each other.
class DeviceMeeting;

// [Note: thread ranks of one device]
// A collective is issued by all ranks together. Each says where its parts lie and records on its
// stream that they are ready; the host threads meet, and compare what they came to do; each lets
// its stream wait for its peers' and issues one kernel that reads from all of them; records that it
// has read; the host threads meet again, and each lets its stream wait for those who read from it.
// Nothing on the device waits for anything but events that are recorded, so that no kernel spins
// and no order of streams can stop the device. What waits on the host waits for the issue of the
// collective, not for its work.
//
// Copies are one launch of cast_pack, reductions one of reduce: sums in rank order, the bits of the
// other communicators. A large all_reduce is shared as theirs is.
class DeviceCommunicator final : public Communicator {
 public:
  // `meeting` is the group's; `device` lives as long.
  DeviceCommunicator(std::shared_ptr<const JobMember> member, RankGroup group,
                     std::shared_ptr<DeviceMeeting> meeting, const Device& device);
  // For a group of `size`.
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
