#include "fsdp/mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <utility>

#include "base/environment.h"
#include "comm/local/local_mesh.h"
#include "comm/mesh_parts.h"
#include "comm/rendezvous/build_id.h"
#include "comm/shm/shm_mesh.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

struct OwnStreams {
  std::unique_ptr<CpuStream> gather, reduce;
};

// Errors: InvalidArgument, for a back-end that leaves something out.
void require_fitting(const MeshParts& parts) {
  const bool complete = parts.control_plane && parts.control && parts.replicate.gather &&
                        parts.replicate.reduce && parts.shard.gather && parts.shard.reduce;
  if (!complete) {
    throw InvalidArgument({.what = "a mesh without a control plane or without a communicator",
                           .hint = "MeshParts needs all of them; an axis of size one, too"});
  }
  const int world_size = parts.control_plane->world_size();
  const int replicas = parts.replicate.gather->size();
  const int shards = parts.shard.gather->size();
  const bool spans_world = replicas * shards == world_size && parts.control->size() == world_size &&
                           parts.replicate.reduce->size() == replicas &&
                           parts.shard.reduce->size() == shards;
  if (spans_world) return;
  throw InvalidArgument(
      {.what = fmt::format("a mesh of {} ranks with communicators of {} × {} (gather), {} × {} "
                           "(reduce) and {} (control)",
                           world_size, replicas, shards, parts.replicate.reduce->size(),
                           parts.shard.reduce->size(), parts.control->size()),
       .hint = "the sizes of the axes multiply to the world's, for gathers and for reductions"});
}

}  // namespace

struct Mesh::State {
  explicit State(MeshParts made_of) : parts(std::move(made_of)) {}

  const AxisCommunicators& at(Axis axis) const {
    return axis == Axis::kShard ? parts.shard : parts.replicate;
  }

  const MeshParts parts;
  HostOrder order;
  std::mutex mutex;  // of what follows; kept alive by engines
  std::weak_ptr<OwnStreams> streams;
  std::weak_ptr<SharedByEngines> shared_by_engines;
};

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Mesh::Mesh(MeshParts parts) {
  require_fitting(parts);
  state_ = std::make_shared<State>(std::move(parts));
}

Mesh Mesh::from_env(MeshOptions options) {
  const LaunchEnvironment environment = read_launch_environment();
  if (environment.world_size == 1) return local(1, {.on_warning = options.on_warning}).front();
  Mesh mesh(shm_mesh(environment, options));
  mesh.agree("program", {fmt::format("build {}", build_id())});
  return mesh;
}

Mesh Mesh::single() { return local(1).front(); }

std::vector<Mesh> Mesh::local(int world_size, MeshOptions options) {
  std::vector<Mesh> meshes;
  for (MeshParts& parts : local_mesh(world_size, options)) meshes.emplace_back(std::move(parts));
  return meshes;
}

int Mesh::rank() const { return state_->parts.control_plane->rank(); }
int Mesh::world_size() const { return state_->parts.control_plane->world_size(); }
int Mesh::local_rank() const { return state_->parts.topology.local_rank; }
const std::string& Mesh::host() const { return state_->parts.topology.host; }
int Mesh::size(Axis axis) const { return state_->at(axis).gather->size(); }

Communicator& Mesh::gather_communicator(Axis axis) const { return *state_->at(axis).gather; }
Communicator& Mesh::reduce_communicator(Axis axis) const { return *state_->at(axis).reduce; }
Communicator& Mesh::control_communicator() const { return *state_->parts.control; }

MeshStreams Mesh::streams(CpuStreams kind) const {
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<OwnStreams> own = state_->streams.lock();
  if (!own) {
    own = std::make_shared<OwnStreams>(
        OwnStreams{make_cpu_stream(kind, "fsdp-gather"), make_cpu_stream(kind, "fsdp-reduce")});
    state_->streams = own;
  }
  if (own->gather->is_inline() != (kind == CpuStreams::kInline)) {
    throw InvalidArgument({.what = "engines of one mesh ask for inline and for threaded streams",
                           .where = "Options::cpu_streams",
                           .cause = "their collectives travel on the mesh's two streams",
                           .hint = "give all engines of a mesh the same cpu_streams, or let the "
                                   "other engine go first"});
  }
  return {.gather = {own, own->gather.get()}, .reduce = {own, own->reduce.get()}};
}

HostOrder& Mesh::order() const { return state_->order; }

void Mesh::agree(std::string_view what, const std::vector<std::string>& lines) const {
  state_->parts.control_plane->agree(what, lines);
}

std::vector<std::string> Mesh::exchange(std::string_view what, std::string_view text) const {
  return state_->parts.control_plane->exchange(what, text);
}

void Mesh::warn(const ErrorText& warning) const {
  if (state_->parts.on_warning) state_->parts.on_warning(warning);
}

void Mesh::abort(std::string_view cause) const noexcept {
  state_->parts.control_plane->abort(cause);
}

std::shared_ptr<SharedByEngines> Mesh::shared_by_engines(
    const std::function<std::shared_ptr<SharedByEngines>()>& make) const {
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<SharedByEngines> shared = state_->shared_by_engines.lock();
  if (!shared) state_->shared_by_engines = shared = make();
  return shared;
}

}  // namespace fsdp
