// What carries a mesh, and what its engines share: for the layers above comm. Users see mesh.h.
#pragma once

#include <fsdp/mesh.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/collective_sequence.h"
#include "comm/communicator.h"
#include "comm/mesh_parts.h"
#include "memory/memory_budget.h"
#include "runtime/device.h"

namespace fsdp {

// On which a rank's gathers and reductions run. Shared by the engines of the mesh.
struct MeshStreams {
  std::shared_ptr<Stream> gather, reduce;
};

// What the engines of a mesh share; the layer that has something to share derives from it.
class SharedByEngines {
 public:
  virtual ~SharedByEngines() = default;
};

class MeshState {
 public:
  // `whole`: the mesh of which this one is a part, null for the job's. It lives as long.
  // Errors: InvalidArgument if the parts do not fit together.
  explicit MeshState(MeshParts parts, std::shared_ptr<MeshState> whole = nullptr);
  // Tells the other ranks first: destroying a communicator may wait for theirs. If an exception
  // ends a part, its communicators wait until the job's mesh ends: by then the others know the
  // cause.
  ~MeshState();
  MeshState(const MeshState&) = delete;
  MeshState& operator=(const MeshState&) = delete;

  const MeshParts& parts() const { return parts_; }
  const Device& device() const { return *parts_.device; }
  const Device& host() const { return *parts_.host; }
  const MeshShape& shape() const { return parts_.shape; }

  // Gathers and reduces have communicators of their own, so that neither queues behind the other;
  // control carries handshakes; inside a step modules (SyncBatchNorm) sum over the ranks on the
  // stream that computes.
  // Requires: the axis has several ranks, or the world has one.
  Communicator& gather_communicator(Axis axis) const { return *at(axis).gather; }
  Communicator& reduce_communicator(Axis axis) const { return *at(axis).reduce; }
  Communicator& control_communicator() const { return *parts_.control; }
  // Makes the communicator where MeshParts::make_modules says how. Collective over all ranks then.
  Communicator& module_communicator();
  // Whether the module communicator works on the device's memory; else on the host's.
  bool modules_on_device() const { return parts_.modules || parts_.make_modules; }

  // The streams of the gather and the reduce communicator. A communicator serves one thread at a
  // time, so all engines of a rank issue on one pair, in their common host order. Made by the first
  // call; they end, all work done, when the last caller lets them go.
  // Requires: callers keep a copy of the mesh until then.
  // Errors: InvalidArgument while streams of another kind are in use.
  MeshStreams streams(bool run_beside);

  // In which all collectives of the mesh are issued, over all its communicators and engines; the
  // same on every rank.
  CollectiveSequence& order() { return order_; }
  // Of a collective on the control communicator: the next place in it; for one rank, which moves
  // nothing, none.
  CollectiveTag next_control_tag(Operation operation, int64_t numel, std::string_view label);

  // What the engines of this mesh hold in common: that of the engines that live, else what `make`
  // returns. It ends with its last holder. Thread-safe.
  std::shared_ptr<SharedByEngines> shared_by_engines(
      const std::function<std::shared_ptr<SharedByEngines>()>& make);

  // Of the engines of all this rank's meshes. Thread-safe.
  MemoryBudget& memory_budget() { return job().memory_budget_; }

  // The mesh of the job, of which this one may be a part.
  MeshState& job() { return whole_ ? whole_->job() : *this; }
  // How many host orders this rank's meshes have: its parts', and the job's. Used by the thread
  // that makes parts.
  int& orders_taken() { return job().orders_taken_; }
  bool has_engines();

 private:
  struct OwnStreams {
    std::unique_ptr<Stream> gather, reduce;
  };
  const AxisCommunicators& at(Axis axis) const;

  const std::shared_ptr<MeshState> whole_;  // first: what is split from it ends before it
  const int exceptions_at_start_;
  MeshParts parts_;
  CollectiveSequence order_;
  int orders_taken_ = 1;              // the job's alone counts
  MemoryBudget memory_budget_;        // the job's alone is used
  std::vector<MeshParts> abandoned_;  // of parts that an exception has ended
  std::mutex mutex_;                  // of what follows; kept alive by engines
  std::weak_ptr<OwnStreams> streams_;
  std::weak_ptr<SharedByEngines> shared_by_engines_;
  std::unique_ptr<Communicator> modules_;  // made by make_modules; null: not yet
};

// The way into a Mesh, for the layers above.
struct MeshAccess {
  static MeshState& state(const Mesh& mesh) { return *mesh.state_; }
  static Mesh make(MeshParts parts) { return Mesh(std::make_shared<MeshState>(std::move(parts))); }
};
inline MeshState& state_of(const Mesh& mesh) { return MeshAccess::state(mesh); }
// Errors: as MeshState's constructor.
inline Mesh mesh_of(MeshParts parts) { return MeshAccess::make(std::move(parts)); }

}  // namespace fsdp
