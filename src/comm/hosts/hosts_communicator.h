// Collectives between ranks of several hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/cpu/rank_group.h"
#include "comm/hosts/host_exchange.h"
#include "comm/hosts/host_reduction.h"
#include "comm/hosts/hosts_session.h"

namespace fsdp {

// A communicator of ranks that compute on the CPUs of one or several hosts.
//
// [Note: two levels] Suppose that the ranks are on H hosts with k ranks each, numbered host by
// host. Rank l of a host exchanges data only with rank l of the other hosts. The ranks of a host
// exchange data through shared memory. For a tensor of S bytes a host sends (H - 1) / H · S in an
// all_gather or reduce_scatter and twice as many in an all_reduce. This is the minimum.
//   all_gather      each rank receives the pieces of the ranks with its number, then the ranks of
//                   each host gather all pieces
//   reduce_scatter  the ranks of each host sum their inputs, so that rank l has the sums for all
//                   ranks with number l; then these ranks exchange and sum the sums of the hosts
//   all_reduce      a reduce_scatter and an all_gather; small data are exchanged as a whole
//   broadcast       the root sends to the ranks with its number, which broadcast on their hosts
// So sums are formed over the ranks of a host in order, then over the hosts in order. The sum of a
// host is rounded to the dtype of the part. If the hosts have different numbers of ranks, or if the
// ranks are not numbered host by host, or if ranks of a host share no memory, every rank counts as
// a host of its own. Then sums are formed in rank order.
class HostsCommunicator final : public Communicator {
 public:
  // Collective over the ranks of `group`. Errors: CommError.
  HostsCommunicator(std::shared_ptr<HostsSession> session, RankGroup group);

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }
  Buffer allocate(int64_t bytes) override;
  // Maps the memory of ranks that are all on one host.
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override;
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override;

 private:
  void execute(const Collective& collective, const CollectiveRecord& record);
  void issue_inside(Collective collective, const CollectiveRecord& record);
  void gather(std::span<const CollectivePart> parts, HostExchange& exchange);
  void gather_inside(std::span<const CollectivePart> parts, int from,
                     const CollectiveRecord& record);
  void reduce_all(std::span<const CollectivePart> parts, ReduceOp op, HostExchange& exchange);
  void broadcast(std::span<const CollectivePart> parts, int root, HostExchange& exchange);
  HostsSession::Place place_of(const CollectiveRecord& record) const {
    return {name_, group_.ranks, record};
  }

  const std::shared_ptr<HostsSession> session_;
  const RankGroup group_;
  const std::string name_;
  HostPlace place_;
  std::unique_ptr<Communicator> inside_;  // the ranks of this host; null if this rank is alone
  std::vector<int> column_;               // by host, the rank of the job with this rank's number
  std::shared_ptr<HostLinks> links_;      // to column_; null if there is one host
  std::unique_ptr<HostReduction> reduction_;
  uint64_t count_ = 0;  // number of collectives over hosts
};

}  // namespace fsdp
