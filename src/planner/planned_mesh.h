// The mesh of a run that is planned: rank 0 of ranks that are imagined.
#pragma once

#include <fsdp/plan.h>

#include "comm/mesh_parts.h"

namespace fsdp {

class PlannedMesh {
 public:
  // Errors: InvalidArgument (78) where the ranks cannot be arranged as the request says.
  explicit PlannedMesh(const PlanRequest& request);

  // Requires: this lives as long as the mesh and what was allocated by it.
  const Mesh& mesh() const { return mesh_; }

 private:
  Mesh make(const PlanRequest& request);

  std::unique_ptr<const Device> device_;
  Mesh mesh_;  // last, hence destroyed first
};

}  // namespace fsdp
