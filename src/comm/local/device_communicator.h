// Collectives between threads that share one device. Kernels of each rank read its peers' memory in
// place. Events order the kernels.
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
// [Note: thread ranks of one device] All ranks issue a collective together. Each rank publishes the
// addresses of its parts and records an event on its stream when they are ready. The host threads
// pass a barrier and compare their collectives. Each rank makes its stream wait for its peers'
// events, issues one kernel that reads from all of them, and records an event after this kernel.
// The host threads pass a second barrier. Then each rank makes its stream wait for the ranks that
// read from it. On the device, work waits for recorded events only, so no kernel spins, and no
// order of streams can deadlock the device. A host thread waits until the collective is issued, not
// until its work is done.
//
// A copy is one launch of cast_pack. A reduction is one launch of reduce, which sums in rank order
// and gives the same bits as the other communicators. An all_reduce is divided into shares in the
// same way as a large all_reduce of CpuCommunicator.
class DeviceCommunicator final : public Communicator {
 public:
  // `meeting` is the shared state of the group. `device` must outlive the communicator.
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
