// The communicators of an engine, and the count of what it sends.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/traffic.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "comm/mesh_state.h"
#include "plan/placement.h"

namespace fsdp {

class Communicators {
 public:
  explicit Communicators(const Mesh& mesh) : mesh_(mesh) {}

  bool one_rank() const { return mesh_.world_size() == 1; }
  Communicator& gather(Axis axis = Axis::kWorld) const {
    return windows_ ? *windows_ : state_of(mesh_).gather_communicator(axis);
  }
  Communicator& reduce(Axis axis = Axis::kWorld) const {
    return state_of(mesh_).reduce_communicator(axis);
  }
  // Does what Options::tuning.nccl_registration asks for: slots that are taken from now on are
  // registered with the engine's own communicator, which gathers. `stream`: on which gathers run.
  // Collective, before the first gather. Errors: InvalidArgument, on all ranks, where it cannot be.
  void gather_into_windows(const Options& options, Stream& stream);
  bool has_windows() const { return windows_ != nullptr; }

  // The tag of a unit's next collective.
  CollectiveTag next_tag(Operation operation, int64_t numel, std::string_view unit) const {
    return state_of(mesh_).order().next(operation, numel, unit.empty() ? "(root)" : unit);
  }
  // Counts a collective of a unit that is issued.
  void count_sent(const AxisCollective& move, std::span<const CollectivePart> parts);

  int64_t all_gathers = 0;
  int64_t reduces = 0;
  Traffic sent;

 private:
  const Mesh& mesh_;
  std::unique_ptr<Communicator> windows_;  // gathers into slots; null: the mesh's does
};

}  // namespace fsdp
