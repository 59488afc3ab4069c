// Builds the mesh of a planned run. It consists of rank 0 and simulated peers.
#pragma once

#include <fsdp/plan.h>

#include <functional>
#include <memory>

#include "comm/mesh_parts.h"
#include "planner/time/step_clock.h"

namespace fsdp {

// A mesh with its device.
class PlannedMesh {
 public:
  // Errors: InvalidArgument (78) if the ranks cannot be arranged as requested, or if the rates lack
  //   a link or a copy that the arrangement uses.
  explicit PlannedMesh(const PlanRequest& request);

  // Requires: this object outlives copies of the mesh and all memory that is allocated on its
  //   device.
  const Mesh& mesh() const { return mesh_; }
  // Null if the request has no rates.
  StepClock* clock() const { return clock_.get(); }

 private:
  Mesh make(const PlanRequest& request);
  // Returns SimulatedGroup::on_issue of a group. Empty without a clock.
  std::function<void(const Collective&, Stream&)> issue_with(const TimedGroup& group) const;

  const std::unique_ptr<StepClock> clock_;
  std::unique_ptr<const Device> device_;
  // With a clock and CPU offload on a GPU: runs the host's kernels. Null: device_ runs them.
  std::unique_ptr<const Device> host_;
  Mesh mesh_;  // last member: destroyed first
};

}  // namespace fsdp
