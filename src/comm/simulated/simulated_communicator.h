// A communicator that moves nothing, for the classic diagnostic: the same run without
// communication.
#pragma once

#include <fsdp/communicator.h>

#include <memory>

namespace fsdp {

// Memory and mappings come from `real`; collectives only put this rank's own contribution where its
// result belongs. What other ranks would have sent is whatever lies there.
class SilentCommunicator final : public Communicator {
 public:
  explicit SilentCommunicator(std::unique_ptr<Communicator> real) : real_(std::move(real)) {}

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  Buffer allocate(int64_t bytes) override;
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag,
                  Stream& stream) override;
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) override;
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) override;
  void broadcast(std::span<const CollectivePart>, int, CollectiveTag, Stream&) override {}
  void barrier(CollectiveTag, Stream&) override {}
  void abort(std::string_view cause) noexcept override { real_->abort(cause); }

 private:
  std::unique_ptr<Communicator> real_;
};

}  // namespace fsdp
