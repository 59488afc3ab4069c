#include "comm/nccl/nccl_mesh.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_communicator.h"

namespace fsdp {

namespace {

// Makes all communicators. The order must be equal on all ranks, because each one is made by a
// collective.
void make_communicators(MeshParts& parts, const std::shared_ptr<NcclSession>& session) {
  const MeshShape shape = parts.shape;
  const auto make = [=](Axis axis, std::string_view name) {
    const std::vector<int> ranks = shape.ranks(axis, session->plane().rank());
    return make_nccl_communicator(session, name, ranks);
  };
  const auto make_axis = [&](Axis axis, std::string_view name) {
    return AxisCommunicators{.gather = make(axis, fmt::format("{}gather", name)),
                             .reduce = make(axis, fmt::format("{}reduce", name))};
  };
  parts.device = &session->device();
  parts.shares_device = false;
  // NCCL communicators replace the communicators in host memory. Parts that store_mesh made have no
  // communicators to replace.
  parts.world = make_axis(Axis::kWorld, "");
  // `make` holds copies of its arguments, so it may be called long after this call has returned.
  parts.make_modules = [=] { return make(Axis::kWorld, "modules"); };
  if (!parts.shape.has_two_axes()) return;
  parts.shard = make_axis(Axis::kShard, "shard ");
  parts.replicate = make_axis(Axis::kReplicate, "replicate ");
}

}  // namespace

// If a rank fails, it aborts the job before its communicators are destroyed, because their
// destructors may wait for other ranks.
void connect_by_nccl(MeshParts& parts, const std::shared_ptr<NcclSession>& session) {
  try {
    make_communicators(parts, session);
  } catch (const std::exception& error) {
    parts.control_plane->abort(error.what());
    throw;
  }
}

void connect_by_nccl(std::vector<MeshParts>& ranks,
                     const std::vector<std::shared_ptr<NcclSession>>& sessions) {
  std::mutex mutex;
  std::exception_ptr first;
  // All ranks connect at the same time, because each one blocks until the others have arrived.
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        sessions[rank]->device().make_current();
        connect_by_nccl(ranks[rank], sessions[rank]);
      } catch (const std::exception&) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace fsdp
