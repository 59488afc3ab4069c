// Records a planned step, and repeats it on another engine without LibTorch's operators.
#pragma once

#include <c10/core/ScalarType.h>
#include <fsdp/plan.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine_parts.h"
#include "plan/pass_record.h"
#include "planner/time/step_clock.h"

namespace fsdp {

// A gradient that the engine captured.
struct SeenGradient {
  int unit = 0, parameter = 0;
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype{};
  bool is_sole = false;  // no other holder had it
};

// Work that is no event of a pass.
struct SeenWork {
  size_t event = 0;  // the work was issued before the event with this index
  std::variant<SeenOperator, SeenGradient> work;
};

// The results of a step that do not depend on the number of ranks.
struct SeenStep {
  PassRecord pass;
  TorchMemoryPlan torch;
  std::vector<std::string> notes;
  // The work of a step with a clock. Unset without a clock, or if the pass does not show the
  // position of all work.
  std::optional<std::vector<SeenWork>> work{};
  std::optional<Rates> rates{};  // of the clock

  bool has_work_of(const Rates& other) const { return work && rates == other; }
};

// Records the operators and gradients of a step. Requires: the engine and the clock outlive this
// object, and no other observes them.
class StepRecorder {
 public:
  StepRecorder(EngineParts& engine, StepClock& clock);
  ~StepRecorder() { end(); }
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // Stops recording. Called after backward.
  void end();
  // Returns SeenStep::work.
  std::optional<std::vector<SeenWork>> take();

 private:
  void add(std::variant<SeenOperator, SeenGradient> work);

  EngineParts& engine_;
  StepClock& clock_;
  std::vector<SeenWork> work_;
  bool is_ordered_ = true;
};

// Runs the engine's part of a recorded pass. If `clock` is not null, also issues the recorded work.
// Requires: no pass is under way, and the engine's schedule expects the recorded pass.
void replay_pass(EngineParts& engine, const SeenStep& seen, StepClock* clock);

}  // namespace fsdp
