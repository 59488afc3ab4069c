// Delays the collectives of another communicator as a slower link would.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/communicator.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "support/wire/wire_time.h"

namespace fsdp::testing {

// Shared memory in which the thread ranks of one group mark the time at which they reach a
// collective.
//
// [Note: marks of two calls]
// A rank's mark of call k + 2 overwrites its mark of call k. A rank that writes it has passed call
// k + 1, which all ranks enter, and each of them enters it only after it has read the marks of call
// k. So two marks a rank are enough, and the collectives themselves order all accesses.
class WireMeeting {
 public:
  // Allocates memory of `device`, on whose streams the collectives run. Requires: the device
  // outlives it.
  WireMeeting(int size, const Device& device);

  const Device& device() const { return device_; }
  // Returns all ranks' marks of a call, by rank.
  int64_t* marks_of(int64_t call) const;
  // Returns the object of the group that split number `split` makes with this color; the same for
  // all its ranks. Thread-safe.
  std::shared_ptr<WireMeeting> group(int64_t split, int color, int size);

 private:
  const int size_;
  const Device& device_;
  const Buffer marks_;
  std::mutex mutex_;
  std::map<std::pair<int64_t, int>, std::shared_ptr<WireMeeting>> groups_;  // shared by their ranks
};

// [Note: a slower wire]
// A rank's stream marks the time when it reaches a collective, runs the collective, and then pauses
// until the link's time has passed since the last rank's mark. So the time counts from when all
// ranks have arrived, and includes the time of the memory copies. All three are work of the stream,
// by the kernels of its device (kernels/pause.h), alike on the host and on a GPU: the pause blocks
// the caller of an inline stream, the worker of a threaded one, and only the stream on a GPU. The
// inner communicator moves and compares the data, and throws.
class WireCommunicator final : public Communicator {
 public:
  // Requires: all ranks of `inner` take part in each collective; `meeting` is the group's.
  WireCommunicator(std::unique_ptr<Communicator> inner, const Wire& wire,
                   std::shared_ptr<WireMeeting> meeting);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Buffer allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return inner_->capabilities(); }
  // Errors, in all collectives: as `inner`; InvalidArgument, before any rank waits, for a
  // collective that takes more than a minute.
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  const std::shared_ptr<WireMeeting> meeting_;  // outlives the inner one, whose work may be pending
  const std::unique_ptr<Communicator> inner_;
  const Wire wire_;
  int64_t calls_ = 0;
  int64_t splits_ = 0;
};

}  // namespace fsdp::testing
