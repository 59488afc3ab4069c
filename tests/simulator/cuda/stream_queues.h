// Streams as queues. Host threads issue work, which runs later, in any allowed order.
//
// Work of one stream runs in the order of issue. A seed decides when work runs. So with some seeds
// a missing wait produces a wrong value, and the host runs ahead of the device.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "simulator/cuda/clock.h"

namespace fsdp::testing::sim {

enum class Schedule : uint8_t {
  kRandom,  // after each call, up to two works of random streams run
  kLate,    // work runs only when the host waits for it or queries it
  kEager,   // work runs as soon as it may
  // Each device has one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1). Work of all its streams
  // starts in the order of issue, and a wait delays later work on every stream. Otherwise as
  // kRandom.
  kOneQueue,
};

inline constexpr std::array kAllSchedules{Schedule::kRandom, Schedule::kLate, Schedule::kEager,
                                          Schedule::kOneQueue};

// [Note: virtual time of streams]
// Work starts at the latest of three times: when the stream's previous work ended, when the point
// that it waits for is reached, and when its thread issued it. The order that the schedule selects
// has no effect on these times. Work takes the time that its kernel sleeps (ptx/launch.h). So
// durations are exact, and tests do not wait for them. A thread that waits continues at the time
// when the work ends. Synchronization between threads takes no time and changes no clock.

// A point in a stream's work.
struct Point {
  int stream = 0;
  bool reached = false;
  // True: no work of its stream reaches this point. Another thread reports the point as reached,
  // after it has waited for `parts`.
  bool held = false;
  std::vector<std::shared_ptr<const Point>> parts{};
  Clock clock;         // the work that has ended when it is reached
  uint64_t at_ns = 0;  // [Note: virtual time of streams]
};

struct Work {
  std::shared_ptr<const Point> after;  // another stream's point, to be reached first; null: none
  std::function<void()> run;
  std::string name;
  uint64_t issued_ns = 0;  // time of the thread that issued it
  uint64_t number = 0;     // number in the order of issue, over all streams
};

struct SimulatedStream {
  int number = 0;
  int device = 0;
  int priority = 0;  // lower is more urgent
  std::string name;
  Clock clock;  // all work issued to it
  std::deque<Work> queue;
  bool destroyed = false;  // work that is queued still runs
  uint64_t now_ns = 0;     // when the work that has run ended
};

// Used by one thread at a time. Streams exist as long as this object, so that a handle stays
// unique.
class StreamQueues {
 public:
  StreamQueues(Schedule schedule, uint32_t seed) : schedule_(schedule), random_(seed) {}

  SimulatedStream& add(int device);
  // Returns null if no stream has this address.
  SimulatedStream* find(const void* handle) const;
  const std::vector<std::unique_ptr<SimulatedStream>>& streams() const { return streams_; }

  void issue(SimulatedStream& stream, Work work) {
    work.number = ++issued_;
    stream.queue.push_back(std::move(work));
  }

  // Runs the work that the schedule selects after a call.
  void run_some();
  // Runs one piece of work of this stream, or of a stream for which it waits. It does so in every
  // schedule, so that a host that polls sees an end eventually. Returns false if all this work
  // waits for a held point.
  bool advance(SimulatedStream& stream);
  void advance_to(const Point& point);
  // Run until all work of the stream has ended, or until the point is reached. Return false if this
  // waits for a held point.
  bool finish(SimulatedStream& stream);
  bool reach(const Point& point);
  bool finish_device(int device);

 private:
  bool advance(SimulatedStream& stream, std::set<int>& on_the_way);
  bool may_run(const SimulatedStream& stream) const;
  // Returns the stream whose next work is first in the hardware queue of `stream`. Requires:
  // `stream` has work.
  SimulatedStream& first_in_queue(SimulatedStream& stream) const;
  bool draws() const { return schedule_ == Schedule::kRandom || schedule_ == Schedule::kOneQueue; }
  void run_head(SimulatedStream& stream);
  bool run_one();

  const Schedule schedule_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<SimulatedStream>> streams_;
  uint64_t issued_ = 0;
};

}  // namespace fsdp::testing::sim
