// The state of a mesh: its parts, and the objects that its engines share. For the layers above
// comm; users see mesh.h.
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

// The streams of a rank's gathers and reductions. Shared by the engines of the mesh.
struct MeshStreams {
  std::shared_ptr<Stream> gather, reduce;
};

// The base of an object that the engines of a mesh share; a layer with such an object derives from
// it.
class SharedByEngines {
 public:
  virtual ~SharedByEngines() = default;
};

// The state that all copies of one rank's Mesh share.
class MeshState {
 public:
  // Holds `parts`. `whole` is the mesh of which this one is a part, null for the job's; it is kept
  // alive.
  // Errors: InvalidArgument if the parts do not fit together.
  explicit MeshState(MeshParts parts, std::shared_ptr<MeshState> whole = nullptr);
  // Notifies the other ranks first, because destroying a communicator may wait for theirs. If an
  // exception ends a part, its communicators are kept until the job's mesh ends: by then the other
  // ranks know the cause.
  ~MeshState();
  MeshState(const MeshState&) = delete;
  MeshState& operator=(const MeshState&) = delete;

  const MeshParts& parts() const { return parts_; }
  const Device& device() const { return *parts_.device; }
  const Device& host() const { return *parts_.host; }
  const MeshShape& shape() const { return parts_.shape; }

  // Return the communicators of an axis. Gathers and reductions have separate ones, so that neither
  // queues behind the other. The control communicator is for handshakes. Inside a step modules
  // (SyncBatchNorm) sum over the ranks with module_communicator, on the compute stream.
  // Requires: the axis has several ranks, or the world has one.
  Communicator& gather_communicator(Axis axis) const { return *at(axis).gather; }
  Communicator& reduce_communicator(Axis axis) const { return *at(axis).reduce; }
  Communicator& control_communicator() const { return *parts_.control; }
  // Returns the communicator of modules. If MeshParts::make_modules is set, the first call makes it
  // and is a collective over all ranks.
  Communicator& module_communicator();
  // Returns true if the module communicator works on the device's memory, false if on the host's.
  bool modules_on_device() const { return parts_.modules || parts_.make_modules; }

  // Returns the streams of the gather and the reduce communicator, made by the first call. A
  // communicator serves one thread at a time, so all engines of a rank issue on one pair, in their
  // common collective sequence. The streams end, all work done, when the last caller releases them.
  // `run_beside`: threaded instead of inline.
  // Requires: callers keep a copy of the mesh until then.
  // Errors: InvalidArgument while streams of the other kind are in use.
  MeshStreams streams(bool run_beside);

  // Returns the sequence of all collectives of the mesh, over all its communicators and engines.
  // Equal on every rank.
  CollectiveSequence& order() { return order_; }
  // Returns the tag of a collective on the control communicator: with the next place in the
  // sequence or, for a single rank, which moves nothing, without a place.
  CollectiveTag next_control_tag(Operation operation, int64_t numel, std::string_view label);

  // Returns the object that the engines of this mesh share: that of the live engines, else the
  // result of `make`. It ends with its last owner. Thread-safe.
  std::shared_ptr<SharedByEngines> shared_by_engines(
      const std::function<std::shared_ptr<SharedByEngines>()>& make);

  // Returns the budget of the engines of all this rank's meshes. Thread-safe.
  MemoryBudget& memory_budget() { return job().memory_budget_; }

  // Returns the job's mesh, of which this one may be a part.
  MeshState& job() { return whole_ ? whole_->job() : *this; }
  // Returns how many collective sequences this rank's meshes have: the job's and its parts'. Used
  // by the thread that makes parts.
  int& orders_taken() { return job().orders_taken_; }
  bool has_engines();

 private:
  struct OwnStreams {
    std::unique_ptr<Stream> gather, reduce;
  };
  const AxisCommunicators& at(Axis axis) const;

  const std::shared_ptr<MeshState> whole_;  // first: destroyed after everything split from it
  const int exceptions_at_start_;
  MeshParts parts_;
  CollectiveSequence order_;
  int orders_taken_ = 1;              // used in the job's mesh only
  MemoryBudget memory_budget_;        // used in the job's mesh only
  std::vector<MeshParts> abandoned_;  // parts that an exception has ended
  std::mutex mutex_;                  // guards the members below, which engines keep alive
  std::weak_ptr<OwnStreams> streams_;
  std::weak_ptr<SharedByEngines> shared_by_engines_;
  std::unique_ptr<Communicator> modules_;  // made by make_modules; null: not yet
};

// Access to the state of a Mesh, for the layers above.
struct MeshAccess {
  static MeshState& state(const Mesh& mesh) { return *mesh.state_; }
  static Mesh make(MeshParts parts) { return Mesh(std::make_shared<MeshState>(std::move(parts))); }
};
inline MeshState& state_of(const Mesh& mesh) { return MeshAccess::state(mesh); }
// Makes a mesh. Errors: as MeshState's constructor.
inline Mesh mesh_of(MeshParts parts) { return MeshAccess::make(std::move(parts)); }

}  // namespace fsdp
