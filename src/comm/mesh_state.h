// The state of a mesh: its parts and the objects that its engines share. This header is for the
// layers above comm. Users include mesh.h.
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

// The streams of a rank's gathers and reductions. Shared by all engines of the mesh.
struct MeshStreams {
  std::shared_ptr<Stream> gather, reduce;
};

// The base class of objects that the engines of a mesh share. A layer that has such an object
// derives a class from it.
class SharedByEngines {
 public:
  virtual ~SharedByEngines() = default;
};

// The state that all copies of one rank's Mesh share.
class MeshState {
 public:
  // Owns `parts`. `whole` is the mesh of which this mesh is a part, or null for the job's mesh.
  // `whole` is kept alive. Errors: InvalidArgument if the parts do not fit together.
  explicit MeshState(MeshParts parts, std::shared_ptr<MeshState> whole = nullptr);
  // First notifies the other ranks that this rank leaves, because destroying a communicator may
  // wait for the other ranks' communicators. If an exception ends a part, its communicators are
  // kept until the job's mesh ends. By that time the other ranks know the cause.
  ~MeshState();
  MeshState(const MeshState&) = delete;
  MeshState& operator=(const MeshState&) = delete;

  const MeshParts& parts() const { return parts_; }
  const Device& device() const { return *parts_.device; }
  const Device& host() const { return *parts_.host; }
  const MeshShape& shape() const { return parts_.shape; }

  // Return the communicators of an axis. Gathers and reductions have different communicators, so
  // that they do not queue behind each other. The control communicator is for handshakes. Modules
  // (SyncBatchNorm) that sum over the ranks inside a step use module_communicator on the compute
  // stream.
  // Requires: the axis has several ranks, or the world has only one rank.
  Communicator& gather_communicator(Axis axis) const { return *at(axis).gather; }
  Communicator& reduce_communicator(Axis axis) const { return *at(axis).reduce; }
  Communicator& control_communicator() const { return *parts_.control; }
  // Returns the communicator of modules. If MeshParts::make_modules is set, the first call makes
  // the communicator and is a collective over all ranks.
  Communicator& module_communicator();
  // Returns true if the module communicator works on device memory, false if it works on host
  // memory.
  bool modules_on_device() const { return parts_.modules || parts_.make_modules; }

  // Returns the streams of the gather and the reduce communicator. The first call makes them. A
  // communicator may be used by one thread at a time. So all engines of a rank issue on the same
  // two streams, in their common collective sequence. When the last caller releases the streams,
  // they finish their work and end. The streams are threaded if `run_beside` is true, otherwise
  // inline.
  // Requires: callers keep a copy of the mesh as long as they use the streams.
  // Errors: InvalidArgument while streams of the other kind (threaded or inline) are in use.
  MeshStreams streams(bool run_beside);

  // Returns the sequence of all collectives of the mesh, over all its communicators and engines.
  // The sequence is equal on every rank.
  CollectiveSequence& order() { return order_; }
  // Returns the tag of a collective on the control communicator. The tag has the next place in the
  // sequence. On a single rank it has no place, because the collective transfers nothing.
  CollectiveTag next_control_tag(Operation operation, int64_t numel, std::string_view label);

  // Returns the object that the engines of this mesh share. If no engine holds such an object,
  // `make` makes one. The last owner destroys the object. Thread-safe.
  std::shared_ptr<SharedByEngines> shared_by_engines(
      const std::function<std::shared_ptr<SharedByEngines>()>& make);

  // Returns the memory budget that the engines of all this rank's meshes share. Thread-safe.
  MemoryBudget& memory_budget() { return job().memory_budget_; }

  // Returns the job's mesh. This mesh is the job's mesh or a part of it.
  MeshState& job() { return whole_ ? whole_->job() : *this; }
  // Returns the number of collective sequences of this rank's meshes, those of parts included. Only
  // the thread that makes parts uses it.
  int& orders_taken() { return job().orders_taken_; }
  bool has_engines();

 private:
  struct OwnStreams {
    std::unique_ptr<Stream> gather, reduce;
  };
  const AxisCommunicators& at(Axis axis) const;

  const std::shared_ptr<MeshState> whole_;  // declared first, so destroyed last
  const int exceptions_at_start_;
  MeshParts parts_;
  CollectiveSequence order_;
  int orders_taken_ = 1;              // used in the job's mesh only
  MemoryBudget memory_budget_;        // used in the job's mesh only
  std::vector<MeshParts> abandoned_;  // of parts that an exception has ended
  std::mutex mutex_;                  // guards the members below, which engines keep alive
  std::weak_ptr<OwnStreams> streams_;
  std::weak_ptr<SharedByEngines> shared_by_engines_;
  std::unique_ptr<Communicator> modules_;  // made by make_modules at first use; null before
};

// Access to the state of a Mesh, for the layers above comm.
struct MeshAccess {
  static MeshState& state(const Mesh& mesh) { return *mesh.state_; }
  static Mesh make(MeshParts parts) { return Mesh(std::make_shared<MeshState>(std::move(parts))); }
};
inline MeshState& state_of(const Mesh& mesh) { return MeshAccess::state(mesh); }
// Makes a mesh. Errors: those of MeshState's constructor.
inline Mesh mesh_of(MeshParts parts) { return MeshAccess::make(std::move(parts)); }

}  // namespace fsdp
