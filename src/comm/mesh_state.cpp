#include "comm/mesh_state.h"

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

// Checks that a back-end has made all parts, and that their sizes match. Errors: InvalidArgument.
void require_fitting(const MeshParts& parts) {
  const auto has = [](const AxisCommunicators& axis) { return axis.gather && axis.reduce; };
  const bool two_axes = parts.shape.has_two_axes();
  const std::string_view missing = !parts.control_plane                ? "control_plane"
                                   : !parts.control                    ? "control"
                                   : !has(parts.world)                 ? "world"
                                   : two_axes && !has(parts.shard)     ? "shard"
                                   : two_axes && !has(parts.replicate) ? "replicate"
                                                                       : "";
  if (!missing.empty()) {
    throw InvalidArgument(
        {.what = fmt::format("MeshParts lacks {}", missing),
         .hint = "set this field; if the mesh has two axes, set the communicators of both axes"});
  }
  const int world_size = parts.control_plane->world_size();
  const auto fits = [](const AxisCommunicators& axis, int size) {
    return axis.gather->size() == size && axis.reduce->size() == size;
  };
  const bool axes_fit = !two_axes || (fits(parts.shard, parts.shape.shard) &&
                                      fits(parts.replicate, parts.shape.replicate));
  if (parts.shape.size(Axis::kWorld) == world_size && parts.control->size() == world_size &&
      fits(parts.world, world_size) && axes_fit) {
    return;
  }
  throw InvalidArgument({.what = fmt::format("the sizes of the communicators do not fit a mesh of "
                                             "{} ranks in {} × {} (replicate × shard)",
                                             world_size, parts.shape.replicate, parts.shape.shard),
                         .hint = "for each axis, pass one communicator for gathers and one for "
                                 "reductions, each with as many ranks as the axis"});
}

}  // namespace

MeshState::MeshState(MeshParts parts, std::shared_ptr<MeshState> whole)
    : whole_(std::move(whole)),
      exceptions_at_start_(std::uncaught_exceptions()),
      parts_(std::move(parts)),
      order_(parts_.ranks_are_threads, parts_.order_begin) {
  require_fitting(parts_);
}

MeshState::~MeshState() {
  // leave() is called before the members are destroyed. The destructors of communicators may wait
  // for other ranks. A rank that still needs this rank must fail instead of waiting.
  parts_.control_plane->leave();
  // An exception unwinds this part and may unwind the whole mesh. The destructors of the part's
  // communicators could wait for ranks that do not know of the exception yet, so the job's mesh
  // keeps the communicators.
  if (whole_ && std::uncaught_exceptions() > exceptions_at_start_) {
    job().abandoned_.push_back(std::move(parts_));
  }
}

Communicator& MeshState::module_communicator() {
  // Thread ranks on a GPU have this communicator from the start. Processes make this communicator
  // when a model first needs it.
  if (!parts_.make_modules) return parts_.modules ? *parts_.modules : *parts_.control;
  const std::lock_guard lock(mutex_);
  if (!modules_) modules_ = parts_.make_modules();
  return *modules_;
}

const AxisCommunicators& MeshState::at(Axis axis) const {
  // An axis that contains all ranks has no communicators of its own and uses those of the world.
  if (shape().size(axis) == shape().size(Axis::kWorld)) return parts_.world;
  return axis == Axis::kShard ? parts_.shard : parts_.replicate;
}

CollectiveTag MeshState::next_control_tag(Operation operation, int64_t numel,
                                          std::string_view label) {
  if (parts_.control_plane->world_size() == 1) return {.label = label};
  return order_.next(operation, numel, label);
}

bool MeshState::has_engines() {
  const std::lock_guard lock(mutex_);
  // The mesh holds the streams weakly and only engines own them, so they exist as long as an engine
  // exists.
  return !streams_.expired();
}

MeshStreams MeshState::streams(bool run_beside) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<OwnStreams> own = streams_.lock();
  run_beside = run_beside || !device().compute_stream().is_inline();  // always true on a GPU
  if (!own) {
    const auto make = [&](const char* name) {
      return device().make_stream(
          {.name = name, .priority = StreamPriority::kHigh, .runs_beside = run_beside});
    };
    own = std::make_shared<OwnStreams>(OwnStreams{make("fsdp-gather"), make("fsdp-reduce")});
    streams_ = own;
  }
  if (own->gather->is_inline() == run_beside) {
    throw InvalidArgument(
        {.what = "two engines of one mesh set different cpu_streams: inline and threaded",
         .where = "Options::tuning.cpu_streams",
         .cause = "all engines of a mesh share its two communication streams",
         .hint =
             "give all engines of a mesh the same cpu_streams, or destroy the other engine first"});
  }
  // The pointers to the gather stream and the reduce stream share the ownership of `own`, so each
  // of them keeps both streams alive, and the streams end together.
  return {.gather = {own, own->gather.get()}, .reduce = {own, own->reduce.get()}};
}

std::shared_ptr<SharedByEngines> MeshState::shared_by_engines(
    const std::function<std::shared_ptr<SharedByEngines>()>& make) {
  const std::lock_guard lock(mutex_);
  // Only engines own the object, so it is destroyed with the last of them.
  std::shared_ptr<SharedByEngines> shared = shared_by_engines_.lock();
  if (!shared) shared_by_engines_ = shared = make();
  return shared;
}

}  // namespace fsdp
