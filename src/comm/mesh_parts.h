// The interface between a mesh and its back-end: a back-end makes MeshParts, and a Mesh is built
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
  std::string host;          // the machine's name
  int local_rank = 0;        // among the job's ranks of that host
  int local_world_size = 1;  // their number
};

// Returns the name of this host, as the system reports it.
std::string host_name();

// The arrangement of the ranks; see Axis.
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
// Returns the shape that the options ask for.
// Errors: InvalidArgument (78) if the options' axes do not fit the world.
MeshShape shape_of(const MeshOptions& options, int world_size, int local_world_size);

// Return functions that pass warnings, and slow ranks, to MeshOptions::on_event; empty if that is
// empty.
std::function<void(const ErrorText& warning)> warning_listener(const MeshOptions& options);
std::function<void(const SlowRank& slow)> slow_listener(const MeshOptions& options);

// One axis of the mesh, as this rank sees it: the communicators of the ranks with which it shares
// the axis. Gathers and reductions have one each and may run at the same time.
struct AxisCommunicators {
  std::unique_ptr<Communicator> gather;
  std::unique_ptr<Communicator> reduce;
};

// The parts of one rank's mesh. None may be null unless its comment says so. They are destroyed in
// the reverse of this order, so the control plane is the last to be destroyed.
struct MeshParts {
  const Device* device = &cpu_device();  // provides the communicators' memory and streams
  const Device* host = &cpu_device();    // its kernels update offloaded main state
  std::unique_ptr<ControlPlane> control_plane;
  bool ranks_are_threads = false;  // several ranks, all of this process
  bool shares_device = false;      // with other ranks, which are threads
  Topology topology;
  // Carries small values in host memory, over all ranks in rank order. Used by the thread that
  // computes.
  std::unique_ptr<Communicator> control;
  // Sums for modules inside a step, over all ranks, in the device's memory. make_modules makes it
  // at first use, on all ranks together. If both are empty, `control` does the work.
  std::unique_ptr<Communicator> modules{};
  std::function<std::unique_ptr<Communicator>()> make_modules{};
  MeshShape shape;
  AxisCommunicators world;
  // These are for a mesh with two axes. Otherwise they are empty: one axis is the world, and along
  // the other each rank is alone.
  AxisCommunicators shard{};
  AxisCommunicators replicate{};
  std::function<void(const ErrorText& warning)> on_warning{};  // empty: no listener
  uint64_t order_begin = 0;  // begin of its sequence; of a part: [Note: orders of a job]
};

// Replaces each communicator of engines and modules, also one that is made later, by the result of
// `wrap`. The control communicator stays.
using WrapCommunicator =
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> communicator)>;
void wrap_communicators(MeshParts& parts, const WrapCommunicator& wrap);

}  // namespace fsdp
