#include "support/wire/wire_communicator.h"

#include "comm/ranks_view.h"
#include "comm/ring_bytes.h"
#include "kernels/pause.h"

namespace fsdp::testing {

WireMeeting::WireMeeting(int size, const Device& device)
    : size_(size),
      device_(device),
      marks_(
          device.allocate(2 * size * static_cast<int64_t>(sizeof(int64_t)), MemoryKind::kDevice)) {}

int64_t* WireMeeting::marks_of(int64_t call) const {
  return static_cast<int64_t*>(marks_.data()) + call % 2 * size_;
}

std::shared_ptr<WireMeeting> WireMeeting::group(int64_t split, int color, int size) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<WireMeeting>& meeting = groups_[{split, color}];
  if (!meeting) meeting = std::make_shared<WireMeeting>(size, device_);
  return meeting;
}

WireCommunicator::WireCommunicator(std::unique_ptr<Communicator> inner, const Wire& wire,
                                   std::shared_ptr<WireMeeting> meeting)
    : meeting_(std::move(meeting)), inner_(std::move(inner)), wire_(wire) {}

RanksView WireCommunicator::map_ranks(const void* mine, int64_t bytes) {
  return inner_->map_ranks(mine, bytes);
}

void WireCommunicator::issue(const Collective& collective, Stream& stream) {
  const int64_t ns = wire_ns(wire_, ring_bytes(collective.operation, collective.parts, size()));
  int64_t* const marks = meeting_->marks_of(calls_);
  kernels::mark_time(stream, marks + rank());
  inner_->issue(collective, stream);
  ++calls_;  // a refused collective is not counted
  kernels::pause_since(stream, {marks, static_cast<size_t>(size())}, ns);
}

std::unique_ptr<Communicator> WireCommunicator::split(int color, int key) {
  auto group = inner_->split(color, key);
  const int64_t split = splits_++;
  if (group->size() == 1) return group;  // a single rank has no link
  auto meeting = meeting_->group(split, color, group->size());
  // One rank has allocated the marks and has waited for them. The barrier orders the other ranks'
  // streams after the allocation.
  const auto stream = meeting->device().make_stream({.name = "split", .runs_beside = false});
  group->barrier({.label = "split"}, *stream);
  stream->synchronize();
  return std::make_unique<WireCommunicator>(std::move(group), wire_, std::move(meeting));
}

}  // namespace fsdp::testing
