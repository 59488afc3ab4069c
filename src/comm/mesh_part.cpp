// Splits a mesh into parts. It uses no back-end, because Communicator::split makes a part's
// communicators.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective_checks.h"
#include "comm/job/part_control_plane.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "fsdp/mesh.h"

namespace fsdp {
namespace {

// One rank's arguments of a split. Ranks exchange them as a line of words. The host's name is the
// last word and contains no spaces.
struct Wish {
  int color = 0;
  PartOptions options;
  int orders_taken = 0;
  bool has_engines = false;
  std::string host;
};

std::string text_of(const Wish& wish) {
  return fmt::format("{} {} {} {} {} {}", wish.color, wish.options.shard, wish.options.replicate,
                     wish.orders_taken, int{wish.has_engines}, wish.host);
}

Wish wish_of(const std::string& text) {
  Wish wish;
  std::istringstream words(text);
  words >> wish.color >> wish.options.shard >> wish.options.replicate >> wish.orders_taken >>
      wish.has_engines >> wish.host;
  return wish;
}

[[noreturn]] void refuse(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .where = "Mesh::part", .hint = std::move(hint)});
}

// A part of a mesh. All ranks of the mesh compute equal values for it.
struct Part {
  std::vector<int> ranks;  // in the numbers of the mesh that is split
  MeshShape shape;
};

// Returns the shape of the part that `members` form. All ranks of the mesh call it for every part,
// so all throw the same error.
MeshShape shape_of_part(const std::vector<Wish>& members, int color) {
  const Wish& first = members.front();
  std::map<std::string, int> ranks_on;  // by host
  for (const Wish& member : members) {
    ++ranks_on[member.host];
    if (member.options.shard == first.options.shard &&
        member.options.replicate == first.options.replicate) {
      continue;
    }
    refuse(
        fmt::format(
            "the ranks of part {} set different options: {} × {} and {} × {} (replicate × shard)",
            color, first.options.replicate, first.options.shard, member.options.replicate,
            member.options.shard),
        "pass the same options on all ranks of one color");
  }
  // Without options, the part's ranks of one host form a group, so each host must have the same
  // number of the part's ranks.
  const int on_first = ranks_on[first.host];
  const auto uneven =
      std::ranges::find_if(ranks_on, [&](const auto& host) { return host.second != on_first; });
  if (first.options.shard == 0 && first.options.replicate == 0 && uneven != ranks_on.end()) {
    refuse(fmt::format("part {} has {} ranks on host {} and {} on host {}", color, on_first,
                       first.host, uneven->second, uneven->first),
           "set PartOptions::shard or replicate: with one group per host, groups would differ in "
           "size");
  }
  const MeshOptions as_mesh{.shard = first.options.shard, .replicate = first.options.replicate};
  return shape_of(as_mesh, static_cast<int>(members.size()), on_first);
}

// Checks all parts on all ranks, so that all ranks throw the same error. Returns the part of
// `color`.
Part find_part(const std::vector<Wish>& wishes, int color) {
  std::map<int, std::pair<std::vector<int>, std::vector<Wish>>> by_color;
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const Wish& wish = wishes[rank];
    require_color(wish.color, "Mesh::part");
    if (wish.has_engines) {
      throw StateError({.what = "cannot split a mesh that has engines",
                        .where = "Mesh::part",
                        .cause = "collectives of these engines may be in progress",
                        .hint = "split the mesh before you make its engines"});
    }
    if (wish.orders_taken >= kOrders) {
      throw DeviceError({.what = fmt::format("a rank would belong to more than {} meshes", kOrders),
                         .where = "Mesh::part",
                         .hint = "split the mesh once and reuse the parts"});
    }
    by_color[wish.color].first.push_back(static_cast<int>(rank));
    by_color[wish.color].second.push_back(wish);
  }
  Part own;
  for (auto& [each, members] : by_color) {
    const MeshShape shape = shape_of_part(members.second, each);
    if (each == color) own = {.ranks = std::move(members.first), .shape = shape};
  }
  return own;
}

// Splits both communicators of an axis. The order of the two splits must be equal on all ranks,
// because each split is a collective.
AxisCommunicators split(const AxisCommunicators& axis, int color, int key) {
  return {.gather = axis.gather->split(color, key), .reduce = axis.reduce->split(color, key)};
}

MeshParts parts_of(const MeshParts& whole, ControlPlane& job, int color, const Part& part) {
  const int key = whole.control_plane->rank();
  std::vector<int> ranks;
  for (const int rank : part.ranks) ranks.push_back(whole.control_plane->job_rank(rank));
  auto control = whole.control->split(color, key);
  // A part of a part also refers to the job's plane, because only that plane has the failures and
  // ends of ranks.
  auto plane = std::make_unique<PartControlPlane>(job, *control, std::move(ranks));
  const int own = plane->rank();
  MeshParts parts{.device = whole.device,
                  .host = whole.host,
                  .control_plane = std::move(plane),
                  .ranks_are_threads = whole.ranks_are_threads && part.ranks.size() > 1,
                  .shares_device = whole.shares_device,
                  .topology = whole.topology,
                  .control = std::move(control),
                  .shape = part.shape,
                  .world = split(whole.world, color, key),
                  .on_event = whole.on_event};
  // All ranks of the part pass one color to the part's own communicator, so the new group contains
  // all of them.
  if (whole.modules || whole.make_modules) parts.modules = parts.world.reduce->split(0, own);
  // All ranks of a shard group have the same rank on the replicate axis. All ranks of a replicate
  // group have the same rank on the shard axis. So these ranks serve as colors.
  if (part.shape.has_two_axes()) {
    parts.shard = split(parts.world, part.shape.rank(Axis::kReplicate, own), own);
    parts.replicate = split(parts.world, part.shape.rank(Axis::kShard, own), own);
  }
  return parts;
}

}  // namespace

Mesh Mesh::part(int color, PartOptions options) const {
  MeshState& job = state_->job();
  const MeshParts& whole = state_->parts();
  std::vector<Wish> wishes;
  const std::vector<std::string> said =
      exchange("parts of the mesh", text_of({.color = color,
                                             .options = options,
                                             .orders_taken = state_->orders_taken(),
                                             .has_engines = state_->has_engines(),
                                             .host = host()}));
  for (const std::string& text : said) wishes.push_back(wish_of(text));
  const Part part = find_part(wishes, color);
  // The index of the part's sequence must be new to all ranks of this mesh. Ranks may have been in
  // different numbers of parts before, so the largest count is used.
  const int order = std::ranges::max(wishes, {}, &Wish::orders_taken).orders_taken;
  state_->orders_taken() = order + 1;
  try {
    MeshParts parts = parts_of(whole, *job.parts().control_plane, color, part);
    parts.order_begin = begin_of_order(order, parts.control_plane->job_rank(0));
    // Posting place 0 marks this rank as a member of the new sequence. CollectivePeers::behind
    // needs this mark, because it checks members only.
    parts.control_plane->post(
        {.record = make_record({.tag = {.sequence = parts.order_begin, .label = "part"}}),
         .communicator = 0});
    return Mesh(std::make_shared<MeshState>(std::move(parts), state_));
  } catch (const std::exception& error) {
    // The job is aborted before the communicators are destroyed. Their destructors may wait for
    // other ranks, which must know of the failure by then.
    whole.control_plane->abort(error.what());
    throw;
  }
}

}  // namespace fsdp
