// Builds the mesh of a planned run. It consists of rank 0 and simulated peers.
#pragma once

#include <fsdp/plan.h>

#include "comm/mesh_parts.h"

namespace fsdp {

// A mesh with its device.
class PlannedMesh {
 public:
  // Errors: InvalidArgument (78) if the ranks cannot be arranged as requested.
  explicit PlannedMesh(const PlanRequest& request);

  // Requires: this object outlives copies of the mesh and all memory that is allocated on its
  //   device.
  const Mesh& mesh() const { return mesh_; }

 private:
  Mesh make(const PlanRequest& request);

  std::unique_ptr<const Device> device_;
  Mesh mesh_;  // last member: destroyed first
};

}  // namespace fsdp
