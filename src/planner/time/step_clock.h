// Gives the work of a planned step its durations.
#pragma once

#include <fsdp/plan.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/time/collective_time.h"
#include "planner/time/operator_price.h"
#include "planner/time/virtual_clock.h"

namespace fsdp {

class TimedStream;

// An operator that a step ran.
struct SeenOperator {
  OperatorPrice price;
  std::optional<double> played_ns;  // its measured time
  std::string hides_products;  // its name, if it contains products whose operations are unknown
};

// The virtual time of a planned rank. The streams of the planned device, its communicators and the
// thread's MetaMode report their work here.
class StepClock final : public OperatorWatch {
 public:
  // A rank on a GPU.
  explicit StepClock(const Rates& rates) : rates_(rates), clock_(rates.contention) {}
  // A rank on the CPU that may use `cores` cores of its host; 0: any number.
  StepClock(const Rates& rates, double cores)
      : rates_(rates), clock_(rates.contention, cores), is_cpu_(true) {}

  VirtualClock& clock() { return clock_; }
  const Rates& rates() const { return rates_; }
  // The stream on which LibTorch's operators run.
  void set_compute(int stream) { compute_ = stream; }

  // Spends the host's time for a kernel, a copy or a collective.
  void call_kernel();
  // Returns the cores that an operator or a kernel uses (TimedWork::cores).
  double cores_used() const { return is_cpu_ ? std::max(1, rates_.cpu.threads) : 0; }

  void issue_collective(const TimedGroup& group, const Collective& collective, Stream& stream);
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  // Runs the work of an operator that another step has seen.
  void run(const SeenOperator& op);
  // Calls `observer` after each operator. Empty: no observer.
  void observe(std::function<void(SeenOperator op)> observer) { observer_ = std::move(observer); }
  // If false, operators of this thread take no time.
  void set_watching(bool watches) { watches_ = watches; }

  // Marks the end of a step on the compute stream.
  void end_step();
  // Returns the time between the ends of the last two steps. Requires: two steps have ended. No
  // step may begin afterwards.
  StepTime last_step();

 private:
  // The state at the end of a step.
  struct StepEnd {
    double at_ns = 0;
    KindTimes seen{}, busy{};
  };
  // Operators with one origin of their times.
  struct Priced {
    int64_t count = 0;
    double ns = 0;
  };
  // Sums over the operators of a step.
  struct Counts {
    double flops = 0;
    Priced played, by_shape, by_bytes;
    CollectiveUse gathers, reductions;
  };
  std::string operators_by_origin() const;

  const Rates rates_;
  VirtualClock clock_;
  const bool is_cpu_ = false;
  int compute_ = 0;
  OperatorPrice pending_;            // of the operator that runs now
  std::optional<double> played_ns_;  // its measured time
  std::function<void(SeenOperator op)> observer_;
  bool watches_ = true;
  Counts counts_, counts_at_end_;  // of the running step and of the last one
  std::vector<StepEnd> ends_;
  std::vector<std::string> unpriced_;  // operators that contain products which are not priced
};

}  // namespace fsdp
