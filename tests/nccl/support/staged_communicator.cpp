#include "nccl/support/staged_communicator.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "comm/sent.h"
#include "runtime/stream.h"

namespace fsdp::testing {

// The copy of one part on the device. Send and receive memory overlap as they do on the host.
class StagedCommunicator::Staging {
 public:
  Staging(const CollectivePart& part, int sent, int received, const Device& device, Stream& stream)
      : part_(part),
        numel_sent_(part.numel * sent),
        bytes_received_(part.numel * received * size_of(part.dtype)) {
    const auto* const send = static_cast<const std::byte*>(part.send);
    const auto* const recv = static_cast<const std::byte*>(part.recv);
    const int64_t bytes_sent = numel_sent_ * size_of(part.dtype);
    const std::less<> before;
    // If the collective is in place, both ranges overlap on the host. They must overlap in the same
    // way on the device.
    if (part.runs.empty()) {
      in_place_ = !before(recv, send) && before(recv, send + bytes_sent);
      in_place_ |= !before(send, recv) && before(send, recv + bytes_received_);
    }
    begin_ = in_place_ && before(recv, send) ? recv : send;
    const int64_t bytes = in_place_
                              ? std::max(send + bytes_sent, recv + bytes_received_, before) - begin_
                              : bytes_sent;
    pinned_ = device.allocate(bytes, MemoryKind::kPinned);
    memory_ = device.allocate(bytes, MemoryKind::kDevice);
    if (!in_place_) apart_ = device.allocate(bytes_received_, MemoryKind::kDevice);
    if (in_place_) {
      std::memcpy(pinned_.data(), begin_, static_cast<size_t>(bytes));
    } else {
      copy_sent(part, 0, numel_sent_, pinned_.data());
    }
    stream.copy(memory_.data(), pinned_.data(), bytes);
  }

  CollectivePart part() const {
    const auto* const send = static_cast<const std::byte*>(part_.send);
    return {.send = memory_.at(send - begin_),
            .recv = received(),
            .numel = part_.numel,
            .dtype = part_.dtype};
  }
  void read(Stream& stream) const { stream.read(part_.recv, received(), bytes_received_); }

 private:
  std::byte* received() const {
    return in_place_ ? memory_.at(static_cast<const std::byte*>(part_.recv) - begin_)
                     : apart_.at(0);
  }

  const CollectivePart part_;
  const int64_t numel_sent_, bytes_received_;
  bool in_place_ = false;
  const std::byte* begin_ = nullptr;  // start of the staged host memory; null if there are runs
  Buffer pinned_, memory_, apart_;
};

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> inner, const Device& device)
    : inner_(std::move(inner)), device_(device), stream_(device.make_stream({.name = "staged"})) {}

void StagedCommunicator::issue(const Collective& collective, Stream& /*stream*/) {
  std::vector<Staging> staged;
  std::vector<CollectivePart> on_device;
  staged.reserve(collective.parts.size());
  for (const CollectivePart& part : collective.parts) {
    staged.emplace_back(part, collective.pieces_sent(size()), collective.pieces_received(size()),
                        device_, *stream_);
    on_device.push_back(staged.back().part());
  }
  Collective own = collective;
  own.parts = on_device;
  inner_->issue(own, *stream_);
  for (const Staging& part : staged) part.read(*stream_);
  // A barrier has no part, so no read waits for the stream.
  if (staged.empty()) stream_->synchronize();
}

std::unique_ptr<Communicator> StagedCommunicator::split(int color, int key) {
  return std::make_unique<StagedCommunicator>(inner_->split(color, key), device_);
}

}  // namespace fsdp::testing
