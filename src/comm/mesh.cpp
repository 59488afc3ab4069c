#include "fsdp/mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/environment.h"
#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/rendezvous/build_id.h"
#include "comm/shm/shm_mesh.h"
#include "comm/wire/wire_time.h"
#include "runtime/open_cuda.h"

namespace fsdp {
namespace {

constexpr std::string_view kProcesses =
    "ranks that are processes cannot exchange memory of GPUs in this version";

std::string after(const std::string& hint, std::string_view ours) {
  return hint.empty() ? std::string(ours) : fmt::format("{}; {}", hint, ours);
}

// The GPU that ranks of this process are to compute on; null: the CPU.
const Device* gpu_for(const MeshOptions& options, int rank, bool are_processes) {
  if (options.device == DeviceKind::kCpu) return nullptr;
  std::string why_not(are_processes ? kProcesses : std::string_view());
  std::string hint;
  if (!are_processes) {
    const CudaDevices& devices = cuda_devices();
    try {
      if (devices.count > 0) return &cuda_device(0);
      why_not = devices.why_none;
      hint = devices.hint;
    } catch (const DeviceError& error) {  // too old, or lost
      why_not = error.text().what;
      hint = error.text().hint;
    }
  }
  if (options.device == DeviceKind::kCuda) {
    throw InvalidArgument({.what = "ranks cannot compute on a GPU",
                           .where = "device cuda",
                           .cause = std::move(why_not),
                           .hint = after(hint, "device auto goes on with the CPU")});
  }
  if (rank == 0 && options.on_warning) {
    options.on_warning({.what = "computing on the CPU",
                        .where = "device auto",
                        .cause = std::move(why_not),
                        .hint = after(hint, "device cpu says nothing")});
  }
  return nullptr;
}

std::vector<Mesh> meshes_of(std::vector<MeshParts> ranks) {
  std::vector<Mesh> meshes;
  for (MeshParts& parts : ranks) meshes.emplace_back(std::make_shared<MeshState>(std::move(parts)));
  return meshes;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Mesh Mesh::from_env(MeshOptions options) {
  if (!is_unlimited(options.wire)) {
    throw InvalidArgument({.what = "a wire with ranks that are processes",
                           .cause = "only collectives between threads are held back",
                           .hint = "make the ranks by Mesh::local"});
  }
  const LaunchEnvironment environment = read_launch_environment();
  if (environment.world_size == 1) {
    return local(1, {.device = options.device,
                     .shard = options.shard,
                     .replicate = options.replicate,
                     .on_warning = options.on_warning})
        .front();
  }
  static_cast<void>(gpu_for(options, environment.rank, /*are_processes=*/true));
  Mesh mesh(std::make_shared<MeshState>(shm_mesh(environment, options)));
  const MeshShape& shape = mesh.state().shape();
  mesh.agree("program", {fmt::format("build {}", build_id()),
                         fmt::format("mesh {} × {}", shape.replicate, shape.shard)});
  return mesh;
}

Mesh Mesh::single() { return local(1).front(); }

std::vector<Mesh> Mesh::local(int world_size, MeshOptions options) {
  const Device* gpu = gpu_for(options, /*rank=*/0, /*are_processes=*/false);
  return meshes_of(local_mesh(world_size, options, gpu));
}

int Mesh::rank() const { return state_->parts().control_plane->rank(); }
int Mesh::world_size() const { return state_->parts().control_plane->world_size(); }
int Mesh::local_rank() const { return state_->parts().topology.local_rank; }
const std::string& Mesh::host() const { return state_->parts().topology.host; }
int Mesh::size(Axis axis) const { return state_->shape().size(axis); }
int Mesh::rank(Axis axis) const { return state_->shape().rank(axis, rank()); }

void Mesh::agree(std::string_view what, const std::vector<std::string>& lines) const {
  state_->parts().control_plane->agree(what, lines);
}

std::vector<std::string> Mesh::exchange(std::string_view what, std::string_view text) const {
  return state_->parts().control_plane->exchange(what, text);
}

void Mesh::warn(const ErrorText& warning) const {
  if (state_->parts().on_warning) state_->parts().on_warning(warning);
}

void Mesh::abort(std::string_view cause) const noexcept {
  state_->parts().control_plane->abort(cause);
}

}  // namespace fsdp
