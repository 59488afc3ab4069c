// Delays the collectives of another communicator, as a slower link does.
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

// Shared memory of one group of thread ranks. In it, each rank marks the time at which it reaches a
// collective.
//
// [Note: marks of two calls]
// A rank's mark of call k + 2 overwrites its mark of call k. The rank writes this mark after it has
// finished call k + 1. All ranks enter call k + 1, and each rank enters it only after it has read
// the marks of call k. So two marks a rank are enough, and the collectives themselves order all
// accesses.
class WireMeeting {
 public:
  // Allocates memory of `device`. The collectives run on streams of this device. Requires: the
  // device outlives this object.
  WireMeeting(int size, const Device& device);

  const Device& device() const { return device_; }
  // Returns the marks of all ranks for one call, by rank.
  int64_t* marks_of(int64_t call) const;
  // Returns the object for a new group. `split` is the number of the split call and `color` the
  // group's color. All ranks of the group get the same object. Thread-safe.
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
// until the link's time has passed since the last rank's mark. So the link's time begins when all
// ranks have arrived, and includes the time of the memory copies.
// The mark, the collective and the pause are work of the stream. Kernels of its device
// (kernels/pause.h) do this on the host and on a GPU alike. The pause blocks the caller if the
// stream is inline, and the worker if the stream is threaded. On a GPU it blocks only the stream.
// The inner communicator transfers and compares the data, and throws the errors.
class WireCommunicator final : public Communicator {
 public:
  // Requires: all ranks of `inner` take part in each collective; `meeting` belongs to the same
  // group.
  WireCommunicator(std::unique_ptr<Communicator> inner, const Wire& wire,
                   std::shared_ptr<WireMeeting> meeting);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Buffer allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return inner_->capabilities(); }
  // Errors: those of `inner`. Also InvalidArgument, before any rank waits, if the link's time for
  // the collective is more than a minute.
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  const std::shared_ptr<WireMeeting> meeting_;  // outlives inner_ and its pending work
  const std::unique_ptr<Communicator> inner_;
  const Wire wire_;
  int64_t calls_ = 0;
  int64_t splits_ = 0;
};

}  // namespace fsdp::testing
