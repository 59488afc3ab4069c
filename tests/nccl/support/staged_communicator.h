// A device's communicator behind memory of the host, so that what tests threads and processes tests
// it as well: each collective copies what it sends, in runs or not, to the device, and what it
// receives back.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "runtime/buffer.h"
#include "runtime/device.h"

namespace fsdp::testing {

// Streams that callers name are the host's; work is done on one of the device, which the host waits
// for.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, const Device& device);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool divides() const override { return inner_->divides(); }
  Buffer allocate(int64_t bytes) override { return allocate_host(bytes); }
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
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  class Staging;
  template <class Collective>
  void stage(std::span<const CollectivePart> parts, int sent, int received, Collective collective);

  const std::unique_ptr<Communicator> inner_;
  const Device& device_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace fsdp::testing
