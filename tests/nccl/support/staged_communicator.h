// A device's communicator that accepts host memory, so that the tests of thread ranks and of
// processes can test it too. Each collective copies the sent data (contiguous or in runs) to the
// device, and copies the received data back.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "runtime/buffer.h"
#include "runtime/device.h"

namespace fsdp::testing {

// Callers pass a stream of the host. The work runs on a stream of the device, and the host waits
// for it.
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
