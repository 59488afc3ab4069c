// Measures how long each operator of a planned step takes on this machine.
//
//   fsdp::Planner planner(build, step);
//   fsdp::PlayedOperators operators = planner.operators(request);
//   for (int round = 0; round < 8; ++round) operators.play(torch::kCPU, fsdp::CpuClock::kWall);
//   request.rates->operators = operators.prices(/*between_ns=*/0);
//   const int64_t ns = planner.plan(request).time->total_ns;
//
// A model of n equal layers has as many distinct operators as one layer, so a round takes about as
// long as a step of two layers.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

struct PlayedOperator;  // internal

// The clock of measurements on the CPU.
enum class CpuClock : uint8_t {
  kWall,
  // The time in which the calling thread runs. Other processes of a busy machine then hardly affect
  // the result. Only for ranks with one thread and without communication.
  kThread,
};

// The content of the CPU's caches when an operator begins.
enum class PlayedCaches : uint8_t {
  kStep,  // of a step in which other operators ran since its arguments were written
  kWarm,  // its arguments, as in a step on few elements
};

// The distinct operators of a step (two calls are equal if they have the same operator, shapes,
// strides, types and integers), and their measured times. A copy has its own times. Thread ranks
// that play at the same time each need a copy.
class PlayedOperators {
 public:
  // Returned by Planner::operators.
  explicit PlayedOperators(std::vector<std::shared_ptr<const PlayedOperator>> operators);

  int64_t count() const { return static_cast<int64_t>(operators_.size()); }
  // Runs a round: each operator once, on tensors of its shapes with random values. Stores the
  // times. Only the tensors of one operator exist at a time. The first round only warms up.
  // On the CPU the time ends when the operator returns; LibTorch's threads may take part
  // (at::set_num_threads). On a GPU it is the time between two events of the current stream.
  // If ranks of a host compute at the same time in a step, all of them must play at the same time.
  void play(c10::Device device, CpuClock clock, PlayedCaches caches = PlayedCaches::kStep);
  // Returns the median of each operator's times plus `between_ns`, by the keys of Rates::operators.
  // If other work of the machine interrupts operators, the prices include the effect.
  // `between_ns` is HostTimes::between_ns on the CPU, and 0 on a GPU.
  // Operators that could not run by themselves have no price.
  // Requires: play() was called at least twice.
  std::map<std::string, double> prices(double between_ns) const;
  // Returns the part by which interruptions make a round longer, which the prices include: the
  // median of the rounds' times divided by the sum of the operators' medians, minus 1.
  // Requires: as prices.
  double interruptions() const;
  // Returns the errors of operators that could not run by themselves, each with its operator.
  const std::map<std::string, std::string>& failures() const { return failures_; }

 private:
  std::map<std::string, double> medians() const;

  std::vector<std::shared_ptr<const PlayedOperator>> operators_;  // shared by copies
  std::vector<std::vector<double>> times_;                        // of each operator
  std::map<std::string, std::string> failures_;                   // by key
  int rounds_ = 0;
};

}  // namespace fsdp
