#include "comm/mesh_parts.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "comm/job/collective_failures.h"
#include "fsdp/error.h"

namespace fsdp {

int MeshShape::size(Axis axis) const {
  switch (axis) {
    case Axis::kShard:
      return shard;
    case Axis::kReplicate:
      return replicate;
    case Axis::kWorld:
      break;
  }
  return replicate * shard;
}

int MeshShape::rank(Axis axis, int world_rank) const {
  switch (axis) {
    case Axis::kShard:
      return world_rank % shard;
    case Axis::kReplicate:
      return world_rank / shard;
    case Axis::kWorld:
      break;
  }
  return world_rank;
}

std::vector<int> MeshShape::ranks(Axis axis, int world_rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < size(Axis::kWorld); ++other) {
    const bool in_group = rank(Axis::kReplicate, other) == rank(Axis::kReplicate, world_rank);
    const bool has_number = rank(Axis::kShard, other) == rank(Axis::kShard, world_rank);
    if ((axis == Axis::kShard && !in_group) || (axis == Axis::kReplicate && !has_number)) continue;
    ranks.push_back(other);
  }
  return ranks;
}

MeshShape shape_of(const MeshOptions& options, int world_size, int local_world_size) {
  MeshShape shape{.replicate = options.replicate, .shard = options.shard};
  // 0 means that the size was not given. If a division below leaves a remainder, the check that
  // shard · replicate equals world_size fails.
  if (shape.shard == 0 && shape.replicate == 0) shape.shard = local_world_size;
  if (shape.shard == 0 && shape.replicate > 0) shape.shard = world_size / shape.replicate;
  if (shape.replicate == 0 && shape.shard > 0) shape.replicate = world_size / shape.shard;
  if (shape.shard > 0 && shape.replicate > 0 && shape.size(Axis::kWorld) == world_size)
    return shape;
  std::string what;
  if (options.shard != 0 && options.replicate != 0) {
    what = fmt::format("{} groups of {} ranks do not make {} ranks", options.replicate,
                       options.shard, world_size);
  } else if (options.shard != 0) {
    what = fmt::format("{} ranks cannot be divided into groups of {}", world_size, options.shard);
  } else if (options.replicate != 0) {
    what = fmt::format("{} ranks cannot be divided into {} equal groups", world_size,
                       options.replicate);
  } else {
    what = fmt::format("{} ranks cannot be divided into hosts of {} ranks", world_size,
                       local_world_size);
  }
  throw InvalidArgument({.what = std::move(what),
                         .where = "MeshOptions: replicate × shard",
                         .hint = "set replicate and shard so that replicate × shard is the number "
                                 "of ranks, or leave one of the two at 0"});
}

std::function<void(const SlowRank& slow)> slow_listener(const MeshOptions& options) {
  if (!options.on_event) return {};
  return [tell = options.on_event](const SlowRank& slow) {
    tell(
        {.kind = MeshEvent::Kind::kSlowRank,
         .text = {.what = fmt::format("rank {} is slow: this rank has waited {} for it", slow.rank,
                                      seconds_text(slow.waited)),
                  .where = slow.collective,
                  .cause = "the wait continues until the time-out",
                  .hint = fmt::format(
                      "look at what rank {} does; this warning is given once per rank", slow.rank)},
         .slow = slow});
  };
}

void wrap_communicators(MeshParts& parts, const WrapCommunicator& wrap) {
  // The control communicator is not wrapped, so that handshakes are real in an ablated run.
  for (auto* each :
       {&parts.world.gather, &parts.world.reduce, &parts.shard.gather, &parts.shard.reduce,
        &parts.replicate.gather, &parts.replicate.reduce, &parts.modules}) {
    if (*each) *each = wrap(std::move(*each));
  }
  if (!parts.make_modules) return;
  parts.make_modules = [make = std::move(parts.make_modules), wrap] { return wrap(make()); };
}

std::string host_name() {
  std::array<char, 256> name{};
  // gethostname may not terminate a name that it cuts, so the last byte of the buffer stays 0.
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace fsdp
