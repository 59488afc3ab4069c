// A communicator that forwards to another one, except for the functions that a test overrides.
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
  Capabilities capabilities() const override { return inner_->capabilities(); }
  void issue(const Collective& collective, Stream& stream) override {
    inner_->issue(collective, stream);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return inner_->split(color, key);
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  const std::unique_ptr<Communicator> inner_;
};

}  // namespace fsdp::testing
