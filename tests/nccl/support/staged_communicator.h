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
  Capabilities capabilities() const override {
    return {.averages = inner_->capabilities().averages};
  }
  Buffer allocate(int64_t bytes) override { return allocate_host(bytes); }
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  class Staging;

  const std::unique_ptr<Communicator> inner_;
  const Device& device_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace fsdp::testing
