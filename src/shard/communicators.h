// Communicators provides an engine with its communicators and tags, and counts the bytes that the
// engine sends.
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
  // If Options::tuning.nccl_registration requests it, makes a separate communicator for this
  // engine's gathers. Slots that are allocated from now on are then registered with NCCL. `stream`
  // is the gather stream. Collective. Must be called before the first gather. Errors:
  // InvalidArgument, on all ranks, if registration is impossible.
  void gather_into_windows(const Options& options, Stream& stream);
  bool has_windows() const { return windows_ != nullptr; }

  // Returns the tag of a unit's next collective. The tag occupies the next position in the mesh's
  // collective sequence, so the caller must issue the collective at once.
  CollectiveTag next_tag(Operation operation, int64_t numel, std::string_view unit) const {
    return state_of(mesh_).order().next(operation, numel, unit.empty() ? "(root)" : unit);
  }
  // Adds the bytes of a unit's collective to `sent`.
  void count_sent(const AxisCollective& move, std::span<const CollectivePart> parts);

  int64_t all_gathers = 0;
  int64_t reduces = 0;
  Traffic sent;

 private:
  const Mesh& mesh_;
  std::unique_ptr<Communicator> windows_;  // gathers into registered slots; null: not registered
};

}  // namespace fsdp
