// A communicator that does what another does, but for what a test overrides.
#pragma once

#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "comm/ranks_view.h"

namespace fsdp::testing {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Buffer allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  RanksView map_ranks(const void* mine, int64_t bytes) override {
    return inner_->map_ranks(mine, bytes);
  }
  bool maps_ranks() const override { return inner_->maps_ranks(); }
  bool divides() const override { return inner_->divides(); }
  bool takes_runs() const override { return inner_->takes_runs(); }
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag,
                  Stream& stream) override {
    inner_->all_gather(parts, tag, stream);
  }
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) override {
    inner_->reduce_scatter(parts, op, tag, stream);
  }
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) override {
    inner_->all_reduce(parts, op, tag, stream);
  }
  void broadcast(std::span<const CollectivePart> parts, int root, CollectiveTag tag,
                 Stream& stream) override {
    inner_->broadcast(parts, root, tag, stream);
  }
  void barrier(CollectiveTag tag, Stream& stream) override { inner_->barrier(tag, stream); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return inner_->split(color, key);
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  const std::unique_ptr<Communicator> inner_;
};

}  // namespace fsdp::testing
