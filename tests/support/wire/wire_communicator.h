// Collectives of another communicator, as long as a slower wire would make them.
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

// Where the ranks of one group, which are threads, write when they came to a collective.
//
// [Note: marks of two calls]
// A rank's mark of call k + 2 takes the place of its mark of call k. Who writes it has passed call
// k + 1, in which all ranks met, and each of them came there only when it had read the marks of
// call k. So two places a rank are enough, and the meetings of the collectives order all of it.
class WireMeeting {
 public:
  // In memory of `device`, on whose streams the collectives run; it lives as long.
  WireMeeting(int size, const Device& device);

  const Device& device() const { return device_; }
  // All ranks' marks of a call, by rank.
  int64_t* marks_of(int64_t call) const;
  // Of the group that is split off with this color by split number `split`; the same for all its
  // ranks. Thread-safe.
  std::shared_ptr<WireMeeting> group(int64_t split, int color, int size);

 private:
  const int size_;
  const Device& device_;
  const Buffer marks_;
  std::mutex mutex_;
  std::map<std::pair<int64_t, int>, std::shared_ptr<WireMeeting>> groups_;  // shared by their ranks
};

// [Note: a slower wire]
// A rank's stream marks the time when it comes to a collective, does the collective, and then
// pauses until the wire's time has passed since the last rank's mark: so its time counts from when
// all are there, and what the memory took is part of it. All three are work of the stream, by the
// kernels of its device (kernels/pause.h), and the same for the host and a GPU: an inline stream
// holds up its caller, a threaded one its worker, a GPU's itself. What is moved, compared and
// thrown is the other communicator's.
class WireCommunicator final : public Communicator {
 public:
  // `inner` is over ranks that meet in each collective; `meeting` is the group's.
  WireCommunicator(std::unique_ptr<Communicator> inner, const Wire& wire,
                   std::shared_ptr<WireMeeting> meeting);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Buffer allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  RanksView map_ranks(const void* mine, int64_t bytes) override;
  Capabilities capabilities() const override { return inner_->capabilities(); }
  // Errors, all of them: as `inner`; InvalidArgument, before anybody waits, for one that takes more
  //   than a minute.
  void issue(const Collective& collective, Stream& stream) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  const std::shared_ptr<WireMeeting> meeting_;  // first: the inner one's work may be under way
  const std::unique_ptr<Communicator> inner_;
  const Wire wire_;
  int64_t calls_ = 0;
  int64_t splits_ = 0;
};

}  // namespace fsdp::testing
