// The seam between a mesh and what carries it: a back-end makes MeshParts, a Mesh is made of them.
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

// Where a rank runs.
struct Topology {
  std::string host;          // the machine's name
  int local_rank = 0;        // among the job's ranks of that host
  int local_world_size = 1;  // their number
};

// The name of this host, as the system has it.
std::string host_name();

// How the ranks are arranged; see Axis.
struct MeshShape {
  int replicate = 1;
  int shard = 1;

  int size(Axis axis) const;
  int rank(Axis axis, int world_rank) const;
  // The ranks of the world that share the axis with this one, in its order.
  std::vector<int> ranks(Axis axis, int world_rank) const;
  bool has_two_axes() const { return replicate > 1 && shard > 1; }
  bool operator==(const MeshShape&) const = default;
};
// Errors: InvalidArgument (78) where the options' axes do not fit the world.
MeshShape shape_of(const MeshOptions& options, int world_size, int local_world_size);

// What passes warnings, and slow ranks, to MeshOptions::on_event; empty where that is.
std::function<void(const ErrorText& warning)> warning_listener(const MeshOptions& options);
std::function<void(const SlowRank& slow)> slow_listener(const MeshOptions& options);

// One axis of the mesh, as this rank sees it: the communicators of the ranks with which it shares
// the axis. Gathers and reductions have one each and may run at the same time.
struct AxisCommunicators {
  std::unique_ptr<Communicator> gather;
  std::unique_ptr<Communicator> reduce;
};

// One rank's parts. None may be null but where it is said. They are destroyed in the reverse of
// this order, so the control plane is the last to go.
struct MeshParts {
  const Device* device = &cpu_device();  // whose memory and streams the communicators take
  const Device* host = &cpu_device();    // whose kernels work on main state that is offloaded
  std::unique_ptr<ControlPlane> control_plane;
  bool ranks_are_threads = false;  // several, of this process
  bool shares_device = false;      // with other ranks, which are threads of this process
  Topology topology;
  // Over all ranks, in rank order, in the host's memory: small values, on the thread that computes.
  std::unique_ptr<Communicator> control;
  // Over all ranks, in the device's memory: what modules sum inside a step. make_modules makes it
  // at first use, on all ranks together. With neither, `control` does the work.
  std::unique_ptr<Communicator> modules{};
  std::function<std::unique_ptr<Communicator>()> make_modules{};
  MeshShape shape;
  AxisCommunicators world;
  // Of a mesh with two axes. Else they are empty: one axis is the world, along the other a rank is
  // alone.
  AxisCommunicators shard{};
  AxisCommunicators replicate{};
  std::function<void(const ErrorText& warning)> on_warning{};  // empty: no listener
  uint64_t order_begin = 0;  // of its host order; of a part: [Note: orders of a job]
};

// Replaces each communicator of engines and modules, also one that is made later, by what `wrap`
// makes of it. That of control stays.
using WrapCommunicator =
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> communicator)>;
void wrap_communicators(MeshParts& parts, const WrapCommunicator& wrap);

}  // namespace fsdp
