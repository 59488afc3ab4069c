// The interface between a mesh and its back-end. A back-end makes MeshParts, and a Mesh is built
// from them.
#pragma once

#include <fsdp/mesh.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job/control_plane.h"
#include "runtime/device.h"

namespace fsdp {

// The place where a rank runs.
struct Topology {
  std::string host;          // name of the machine
  int local_rank = 0;        // index among the job's ranks on that host
  int local_world_size = 1;  // number of the job's ranks on that host
  bool one_host = true;      // all ranks of the job are on that host
};

// Returns the name of this host, as the system reports it.
std::string host_name();

// The arrangement of the ranks in axes; see Axis.
struct MeshShape {
  int replicate = 1;
  int shard = 1;

  int size(Axis axis) const;
  int rank(Axis axis, int world_rank) const;
  // Returns the ranks of the world that share the axis with `world_rank`, in the order of the axis.
  std::vector<int> ranks(Axis axis, int world_rank) const;
  bool has_two_axes() const { return replicate > 1 && shard > 1; }
  bool operator==(const MeshShape&) const = default;
};
// Returns the shape that the options request. Errors: InvalidArgument (78) if the options' axes do
// not fit the world.
MeshShape shape_of(const MeshOptions& options, int world_size, int local_world_size);

// Returns a function that passes slow ranks to MeshOptions::on_event. It is empty if on_event is
// empty.
std::function<void(const SlowRank& slow)> slow_listener(const MeshOptions& options);

// One axis of the mesh as this rank sees it. It has the communicators of the ranks with which this
// rank shares the axis. Gathers and reductions use different communicators and may run at the same
// time.
struct AxisCommunicators {
  std::unique_ptr<Communicator> gather;
  std::unique_ptr<Communicator> reduce;
};

// The parts of one rank's mesh. No pointer may be null unless its comment says so. The members are
// destroyed in reverse order, so the control plane is destroyed last.
struct MeshParts {
  const Device* device = &cpu_device();  // provides memory and streams for the communicators
  const Device* host = &cpu_device();    // its kernels update offloaded main state
  std::unique_ptr<ControlPlane> control_plane;
  bool ranks_are_threads = false;  // all ranks belong to this process
  bool shares_device = false;      // other ranks, which are threads, use the same device
  Topology topology;
  // Carries small values in host memory, over all ranks in rank order. Only the thread that
  // computes uses it.
  std::unique_ptr<Communicator> control;
  // Used by modules that sum over all ranks inside a step, in the device's memory. If make_modules
  // is set, it makes this communicator at first use, on all ranks together. If neither is set,
  // `control` is used instead.
  std::unique_ptr<Communicator> modules{};
  std::function<std::unique_ptr<Communicator>()> make_modules{};
  MeshShape shape;
  AxisCommunicators world;
  // The communicators of each axis, in a mesh with two axes. In all other meshes both members are
  // empty, because one axis is the whole world and each rank is alone on the other axis.
  AxisCommunicators shard{};
  AxisCommunicators replicate{};
  std::function<void(const MeshEvent& event)> on_event{};  // empty if there is no listener
  uint64_t order_begin = 0;  // begin of the mesh's collective sequence: [Note: orders of a job]
};

// Replaces each communicator of engines and modules by the result of `wrap`. A communicator that is
// made later is replaced as well. The control communicator is not replaced.
using WrapCommunicator =
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> communicator)>;
void wrap_communicators(MeshParts& parts, const WrapCommunicator& wrap);

}  // namespace fsdp
