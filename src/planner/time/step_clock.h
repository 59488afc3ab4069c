// Gives the work of a planned step its durations.
#pragma once

#include <fsdp/plan.h>

#include <cstdint>
#include <functional>
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
  std::string hides_products;  // its name, if it contains products whose operations are unknown
};

// The virtual time of a planned rank. The streams of the planned device, its communicators and the
// thread's MetaMode report their work here.
class StepClock final : public OperatorWatch {
 public:
  explicit StepClock(const Rates& rates) : rates_(rates), clock_(rates.contention) {}

  VirtualClock& clock() { return clock_; }
  const Rates& rates() const { return rates_; }
  // The stream on which LibTorch's operators run.
  void set_compute(int stream) { compute_ = stream; }

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
  // Counts of the operators of a step.
  struct Counts {
    double flops = 0;
    int64_t by_shape = 0, by_bytes = 0;
    CollectiveUse gathers, reductions;
  };

  const Rates rates_;
  VirtualClock clock_;
  int compute_ = 0;
  OperatorPrice pending_;  // of the operator that runs now
  std::function<void(SeenOperator op)> observer_;
  bool watches_ = true;
  Counts counts_, counts_at_end_;  // of the running step and of the last one
  std::vector<StepEnd> ends_;
  std::vector<std::string> unpriced_;  // operators that contain products which are not priced
};

}  // namespace fsdp
