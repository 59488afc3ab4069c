// A real group that moves nothing, for the classic diagnostic: the same run without communication.
#pragma once

#include <memory>

#include "comm/simulated/simulated_communicator.h"

namespace fsdp {

// Memory, mappings and groups are those of `real`; collectives are simulated with silent peers, so
// that results are meaningless.
class AblatedCommunicator final : public Communicator {
 public:
  explicit AblatedCommunicator(std::unique_ptr<Communicator> real);

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  Buffer allocate(int64_t bytes) override;
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  bool maps_ranks() const override { return real_->maps_ranks(); }
  bool divides() const override { return real_->divides(); }
  bool takes_runs() const override { return real_->takes_runs(); }
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag,
                  Stream& stream) override;
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) override;
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) override;
  void broadcast(std::span<const CollectivePart> parts, int root, CollectiveTag tag,
                 Stream& stream) override;
  void barrier(CollectiveTag tag, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override { real_->abort(cause); }

 private:
  std::unique_ptr<Communicator> real_;
  SimulatedCommunicator silent_;
};

}  // namespace fsdp
