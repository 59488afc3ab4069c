// The mesh of a run that is planned: rank 0 of ranks that are imagined.
#pragma once

#include <fsdp/plan.h>

#include "planner/planned_communicator.h"

namespace fsdp {

class PlannedMesh {
 public:
  // Errors: InvalidArgument (78) where the ranks cannot be arranged as the request says.
  explicit PlannedMesh(const PlanRequest& request);

  // Requires: this lives as long as the mesh and what was allocated by it.
  const Mesh& mesh() const { return mesh_; }
  // Since the last call.
  StepTraffic take_traffic();

 private:
  struct AxisCounts {
    CollectiveCount gather, reduce;
  };
  AxisCommunicators axis(int size, AxisCounts& counts, bool maps_ranks) const;
  Mesh make(const PlanRequest& request);

  std::unique_ptr<const Device> device_;
  AxisCounts world_, inside_, across_;
  CollectiveCount modules_;
  Mesh mesh_;  // last, hence destroyed first
};

}  // namespace fsdp
