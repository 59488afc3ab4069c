// Makes meshes. Only this file includes all back-ends. All other files of comm use MeshParts.
#include "comm/make_mesh.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "base/standard_streams.h"
#include "comm/gpu_choice.h"
#include "comm/hosts/hosts_mesh.h"
#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/nccl/nccl_mesh.h"
#include "comm/rendezvous/build_id.h"
#include "comm/shm/shm_mesh.h"
#include "comm/store/master_address.h"
#include "comm/store/open_job_store.h"
#include "comm/store/store_mesh.h"

namespace fsdp {
namespace {

// Ends a process in which a thread hangs in a call, because no exception can reach that thread.
// _Exit skips destructors, which would wait for the thread.
void end_process(const MeshOptions& options, int rank, const Failure& failure) {
  if (options.on_event) {
    options.on_event({.kind = MeshEvent::Kind::kStuck, .text = failure.text, .code = failure.code});
  }
  const CommError error(failure.text, failure.code);
  write_error_line(fmt::format("fsdp: rank {} is stuck: {}", rank, error.what()));
  std::_Exit(static_cast<int>(failure.code));
}

std::shared_ptr<NcclSession> session_of(const MeshParts& parts, const MeshOptions& options,
                                        const Device& device) {
  if (options.first_use < 1) {
    throw InvalidArgument(
        {.what = fmt::format("first_use is {}, expected 1 or more", options.first_use),
         .where = "MeshOptions::first_use",
         .hint = "use 1 or more: the first collectives may take first_use × timeout"});
  }
  return std::make_shared<NcclSession>(NcclSession::Parts{
      .library = nccl::library(),
      .device = device,
      .plane = *parts.control_plane,
      .timeout = options.timeout,
      .first_use = options.first_use,
      .on_stuck = [options, rank = parts.control_plane->rank()](const Failure& failure) {
        end_process(options, rank, failure);
      }});
}

// Connects a process's mesh by NCCL, after its ranks have found each other. Returns false, on all
// ranks, if the ranks stay on the CPU.
bool move_to_gpu(MeshParts& parts, const MeshOptions& options, const GpuChoice& own) {
  if (!compute_on_gpus(options, own, *parts.control_plane)) return false;
  // From here on, the rank's GPU is this thread's current CUDA device, so LibTorch's operators use
  // it, too.
  own.device->make_current();
  connect_by_nccl(parts, session_of(parts, options, *own.device));
  return true;
}

// Makes the MeshParts of this process in a job on one host.
MeshParts parts_on_host(const LaunchEnvironment& environment, const MeshOptions& options) {
  MeshParts parts = shm_mesh(environment, options);
  if (options.device == DeviceKind::kCpu) return parts;
  move_to_gpu(parts, options, gpu_of_process(parts.topology.local_rank));
  return parts;
}

void require_transport(const MeshMaking& making) {
  if (making.open_transport != nullptr) return;
  throw InvalidArgument(
      {.what = "ranks on CPUs of several hosts cannot connect: the program does not link Gloo",
       .where = "Mesh::from_env",
       .cause = "Gloo is a part of LibTorch, which is linked with the engine",
       .hint = "link the CMake target fsdp::fsdp"});
}

// Makes the MeshParts of this process in a job on several hosts.
MeshParts parts_on_hosts(const LaunchEnvironment& environment, const MeshOptions& options,
                         const MeshMaking& making) {
  require_master(environment);
  GpuChoice own;
  if (options.device != DeviceKind::kCpu) own = gpu_of_process(environment.local_rank);
  // Each rank checks its own GPU before it waits for the other ranks. Usually either all ranks have
  // a GPU or none has. In the latter case all ranks fail at once and need no store.
  if (own.device == nullptr && options.device == DeviceKind::kCuda) compute_on_gpu(options, own);
  if (own.device == nullptr) require_transport(making);
  StoreRanks joined =
      mesh_over_store(open_job_store(environment, options, making.open_store), environment, options,
                      own.device == nullptr ? HostMemory::kShared : HostMemory::kSeparate);
  std::string address;
  try {
    if (move_to_gpu(joined.parts, options, own)) return std::move(joined.parts);
    require_transport(making);
    address = route_address(environment, options.timeout);
  } catch (const std::exception& error) {
    joined.parts.control_plane->abort(error.what());
    throw;
  }
  return hosts_mesh(std::move(joined), making.open_transport, address, options);
}

}  // namespace

Mesh make_mesh(const MeshOptions& options, const MeshMaking& making) {
  const LaunchEnvironment environment = read_launch_environment();
  if (environment.world_size == 1) {
    // One rank needs no rendezvous and no shared memory.
    return Mesh::local(1, {.device = options.device,
                           .shard = options.shard,
                           .replicate = options.replicate,
                           .on_event = options.on_event})
        .front();
  }
  const bool one_host = environment.local_world_size == environment.world_size;
  MeshParts parts =
      one_host ? parts_on_host(environment, options) : parts_on_hosts(environment, options, making);
  if (making.change) making.change(parts);
  Mesh mesh = mesh_of(std::move(parts));
  const MeshShape& shape = state_of(mesh).shape();
  // Ranks of different builds could issue different collectives, so a difference of builds fails
  // here, with a message that names both builds.
  mesh.agree("program", {fmt::format("build {}", build_id()),
                         fmt::format("mesh {} × {}", shape.replicate, shape.shard)});
  return mesh;
}

Mesh Mesh::single() { return local(1).front(); }

std::vector<MeshParts> parts_of_threads(int world_size, const MeshOptions& options) {
  if (options.device == DeviceKind::kCpu) return local_mesh(world_size, options);
  const GpuChoice gpu = gpu_of_threads();
  const Device* const shared = compute_on_gpu(options, gpu) ? gpu.device : nullptr;
  return local_mesh(world_size, options, shared);
}

std::vector<Mesh> Mesh::local(int world_size, MeshOptions options) {
  std::vector<Mesh> meshes;
  for (MeshParts& parts : parts_of_threads(world_size, options)) {
    meshes.push_back(mesh_of(std::move(parts)));
  }
  return meshes;
}

}  // namespace fsdp
