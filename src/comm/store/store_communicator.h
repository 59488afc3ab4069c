// Collectives over a key-value store, in host memory. These collectives are for small values of
// ranks on several hosts, outside steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/cpu/rank_group.h"
#include "comm/job/collective_record.h"
#include "comm/job/job_member.h"
#include "comm/store/key_value_store.h"

namespace fsdp {

// A communicator over a store. Each rank writes its input under its own key and reads the inputs of
// all ranks. This takes two requests per rank, which is about a millisecond. Sums are formed in
// rank order, like those of the other CPU communicators. A collective is complete when its call
// returns, for any stream.
class StoreCommunicator final : public Communicator {
 public:
  // `lost` returns the job's failure if the store does not answer any more.
  using StoreIsLost = std::function<Failure(std::string_view cause)>;
  StoreCommunicator(std::shared_ptr<const JobMember> member, RankGroup group,
                    std::unique_ptr<KeyValueStore> store, StoreIsLost lost);

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }
  Buffer allocate(int64_t bytes) override;
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override;

 private:
  // Sends `pieces` pieces of each part. Returns the input of each rank, in which the parts follow
  // each other.
  std::vector<std::string> exchange(std::span<const CollectivePart> parts, int pieces,
                                    const CollectiveRecord& record);
  std::vector<std::string> exchange_at_store(std::span<const CollectivePart> parts, int pieces,
                                             const CollectiveRecord& record);
  void wait(const std::vector<std::string>& keys, const CollectiveRecord& record);
  void compare(const std::vector<std::string>& sent, const CollectiveRecord& record) const;
  void receive(const CollectivePart& part, const CollectiveRecord& record,
               const std::vector<std::string>& sent, size_t at) const;

  const std::shared_ptr<const JobMember> member_;
  const RankGroup group_;
  const std::unique_ptr<KeyValueStore> store_;
  const std::string name_;  // prefix of the group's keys; no other group of these ranks has it
  const StoreIsLost lost_;
  uint64_t count_ = 0;
};

}  // namespace fsdp
