#include "shard/communicators.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "comm/ring_bytes.h"
#include "fsdp/error.h"

namespace fsdp {

void Communicators::gather_into_windows(const Options& options, Stream& stream) {
  if (options.tuning.nccl_registration == NcclRegistration::kOff) return;
  const auto refuse = [](std::string what, std::string cause) {
    throw InvalidArgument({.what = std::move(what),
                           .where = "Options::tuning.nccl_registration",
                           .cause = std::move(cause),
                           .hint = "leave nccl_registration at kOff"});
  };
  if (state_of(mesh_).shape().has_two_axes()) {
    refuse("nccl_registration is set, but ranks are in groups",
           "several communicators would use one buffer, but NCCL registers a buffer with only one "
           "communicator");
  }
  if (options.strategy != Strategy::kFullShard) {
    refuse(
        fmt::format("nccl_registration is set, but the strategy is {}", name_of(options.strategy)),
        "this strategy has no gather buffers that NCCL could register");
  }
  // with_windows is a collective of the mesh's gather communicator, which only one thread may use
  // at a time. Gathers of another engine may be in flight on the shared gather stream, so the host
  // first waits for this stream.
  stream.synchronize();
  windows_ = gather().with_windows(options.tuning.nccl_registration == NcclRegistration::kZeroCta);
}

void Communicators::count_sent(const AxisCollective& move, std::span<const CollectivePart> parts) {
  AxisTraffic& axis = sent.along(move.axis);
  const int ranks = mesh_.size(move.axis);
  const int64_t bytes = ring_bytes(move.operation, parts, ranks);
  const bool gathers = move.operation == Operation::kAllGather;
  const int hosts = (gathers ? gather(move.axis) : reduce(move.axis)).capabilities().hosts;
  sent.to_other_hosts += bytes_to_other_hosts(move.operation, parts, ranks, hosts);
  ++(gathers ? axis.gathers : axis.reductions);
  (gathers ? axis.gathered_bytes : axis.reduced_bytes) += bytes;
}

}  // namespace fsdp
