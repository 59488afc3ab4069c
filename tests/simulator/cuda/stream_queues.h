// Streams as queues: host threads issue work, and it runs later, in any order that is allowed.
//
// Work of one stream runs in the order of issue. What runs when is drawn by a seed, so that a wait
// that is missing shows in some runs as a wrong value, and the host runs ahead of the device.
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
  kRandom,  // after each call none, one or two pieces of work run, of streams that are drawn
  kLate,    // work runs when the host waits for it or asks after it, and no other does
  kEager,   // work runs as soon as it may
  // A device has one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1): its streams' work begins in
  // the order of issue, and a wait holds up what was issued behind it on any stream. Else kRandom.
  kOneQueue,
};

inline constexpr std::array kAllSchedules{Schedule::kRandom, Schedule::kLate, Schedule::kEager,
                                          Schedule::kOneQueue};

// [Note: virtual time of streams]
// Work starts when the work before it on its stream is done, what its stream waits for is reached,
// and the thread that issues it has come there: the latest of these, whatever order the schedule
// draws. It takes the time that its kernel sleeps (ptx/launch.h), so that durations are exact and
// nobody waits for them. A thread comes to the end of what it waits for; what threads tell each
// other takes no time and moves no clock.

// A point in a stream's work.
struct Point {
  int stream = 0;
  bool reached = false;
  // No work of its stream leads to it: somebody says when it is reached, who waits for these first.
  bool held = false;
  std::vector<std::shared_ptr<const Point>> parts{};
  Clock clock;         // what is over once it is reached
  uint64_t at_ns = 0;  // [Note: virtual time of streams]
};

struct Work {
  std::shared_ptr<const Point> after;  // of another stream: it is reached first. null: of none
  std::function<void()> run;
  std::string name;
  uint64_t issued_ns = 0;  // by the thread that issued it
  uint64_t number = 0;     // in the order of issue, over all streams
};

struct SimulatedStream {
  int number = 0;
  int device = 0;
  int priority = 0;  // lower is more urgent
  std::string name;
  Clock clock;  // of what was issued to it
  std::deque<Work> queue;
  bool destroyed = false;  // what is queued is still done
  uint64_t now_ns = 0;     // when the work that has run was done
};

// Used by one thread at a time. Streams stay until it is gone, so that a handle names one of them
// for good.
class StreamQueues {
 public:
  StreamQueues(Schedule schedule, uint32_t seed) : schedule_(schedule), random_(seed) {}

  SimulatedStream& add(int device);
  // Null: no stream of these queues has this address.
  SimulatedStream* find(const void* handle) const;
  const std::vector<std::unique_ptr<SimulatedStream>>& streams() const { return streams_; }

  void issue(SimulatedStream& stream, Work work) {
    work.number = ++issued_;
    stream.queue.push_back(std::move(work));
  }

  // What the schedule lets run at this time.
  void run_some();
  // One piece of work of this stream or of those it waits for, in every schedule, so that a host
  // that asks again and again gets an answer some day. False: all of it waits for a point that is
  // held.
  bool advance(SimulatedStream& stream);
  void advance_to(const Point& point);
  // Until everything that was issued to the stream is done, or until the point is reached. False:
  // that waits for a point that is held.
  bool finish(SimulatedStream& stream);
  bool reach(const Point& point);
  bool finish_device(int device);

 private:
  bool advance(SimulatedStream& stream, std::set<int>& on_the_way);
  bool may_run(const SimulatedStream& stream) const;
  // The stream whose head is next in the hardware queue of this stream's. Requires: it has work.
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
