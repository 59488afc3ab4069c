// Simulates the streams of a rank in virtual time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/code_place.h"

namespace fsdp {

// The kinds of work to which a step's time is attributed.
enum class TimedKind : uint8_t {
  kProducts,       // matrix products and convolutions
  kAttention,      // scaled_dot_product_attention
  kOperators,      // all other operators of LibTorch
  kKernels,        // the engine's kernels on the compute stream, except the optimizer's
  kOptimizer,      // updates, norms and clipping
  kGather,         // transfers of gathers
  kReduce,         // transfers of reductions
  kGatherLatency,  // latency of gathers
  kReduceLatency,  // latency of reductions
  kGatherKernels,  // the engine's kernels on the gather stream
  kReduceKernels,  // the engine's kernels on the reduce stream
  kTransfer,       // copies between device and host
  kHost,           // the rank's thread has issued no work yet
};
inline constexpr int kTimedKinds = 13;

// A stream's work.
struct TimedWork {
  TimedKind kind = TimedKind::kOperators;
  double ns = 0;            // duration if nothing shares the device or the wire
  bool on_wire = false;     // shares the wire's bandwidth with all other work of this sort
  bool collective = false;  // slows the compute stream while it runs
  double cores = 0;         // cores of the rank's host that it uses; 0 on a GPU
};

// A point in a stream's work.
struct TimedMark {
  int stream = 0;
  bool reached = false;
  double at_ns = 0;  // valid if the point is reached
};

// Nanoseconds by kind.
using KindTimes = std::array<double, kTimedKinds>;

// [Note: virtual time] The clock has a queue for each stream. The rank's thread issues work,
// records marks and adds waits, as on a device whose host is ahead. Virtual time advances only when
// a time is requested: the clock then processes the queues in the order of time until the requested
// mark is reached. So two collectives that run at the same time share the wire for exactly this
// time, and compute is slower for exactly the time in which a collective runs. Rates change only
// when some work begins or ends, so the result is exact. On an inline stream each work is processed
// at once and moves the host's time.
// Work of a kernel on a communication stream does not slow compute on a GPU. On a CPU all streams
// share the cores of the rank: if running work uses more cores than the rank has, it takes longer
// in this proportion.
// Not thread-safe: one thread issues all work of a planned rank.
class VirtualClock {
 public:
  // While a collective runs, work on the compute stream takes 1 + `contention` times as long.
  // `cores`: cores of the rank; 0: any number.
  explicit VirtualClock(double contention, double cores = 0)
      : slowdown_(1 + contention), cores_(cores) {}

  // Adds a stream. `is_compute`: LibTorch's operators run on it.
  int add_stream(bool is_inline, bool is_compute);

  void issue(int stream, const TimedWork& work);
  // Spends time of the rank's thread.
  void spend_on_host(double ns) { host_ns_ += ns; }
  std::shared_ptr<TimedMark> mark(int stream);
  void wait(int stream, std::shared_ptr<TimedMark> mark, const CodePlace& place);
  // Calls `tell` with the time at which the stream reaches this point.
  void tell(int stream, std::function<void(double ns)> tell);
  // Blocks the rank's thread until the mark is reached.
  void wait_on_host(const TimedMark& mark);
  // Processes all work that was issued.
  void run();

  // Return the time of the step by what the compute stream ran or waited for, and the time in which
  // each kind of work ran on any stream. Both belong to the time until which work was processed.
  const KindTimes& seen() const { return seen_; }
  const KindTimes& busy() const { return busy_; }
  double now() const { return now_ns_; }

  // For tests: `keeps` returns false for a wait to leave out.
  void filter_waits(std::function<bool(const CodePlace& place)> keeps) {
    keeps_ = std::move(keeps);
  }

 private:
  struct Item {
    double not_before = 0;  // the host's time when it was issued
    TimedWork work{};       // its ns are what remains
    std::shared_ptr<TimedMark> mark{}, wait{};
    std::function<void(double ns)> tell{};
  };
  struct Queue {
    bool is_inline = false;
    bool is_compute = false;
    std::deque<Item> items{};
    bool is_working = false;  // the first item is work that runs now
  };

  void add(int stream, Item item);
  void run_until(const TimedMark& mark);
  bool advance();         // to the next begin or end of work; false: all queues are idle
  void pass_due_items();  // removes items that need no time
  bool passes(Queue& queue);
  // The work that runs now.
  struct Load {
    int on_wire = 0, collectives = 0;
    double crowding = 1;  // used cores divided by the cores of the rank, at least 1
  };
  Load load() const;
  double rate_of(const Queue& queue, const Load& load) const;
  TimedKind kind_now() const;
  TimedKind kind_of(const Queue& queue, int depth) const;

  const double slowdown_;
  const double cores_;
  double host_ns_ = 0;
  double now_ns_ = 0;
  std::vector<Queue> queues_;
  KindTimes seen_{}, busy_{};
  std::function<bool(const CodePlace& place)> keeps_;
};

}  // namespace fsdp
