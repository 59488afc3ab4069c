#include "comm/simulated/simulated_communicator.h"

#include <cstddef>
#include <thread>
#include <vector>

#include "comm/ranks_view.h"
#include "comm/reduce/reduce_in_order.h"
#include "comm/sent.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

int64_t bytes_of(const CollectivePart& part) { return part.numel * size_of(part.dtype); }

}  // namespace

Buffer SimulatedCommunicator::allocate(int64_t bytes) {
  if (group_.device == nullptr) return allocate_host(bytes);
  return group_.device->allocate(bytes, MemoryKind::kDevice);
}

RanksView SimulatedCommunicator::map_ranks(const void* /*mine*/, int64_t bytes) {
  if (!group_.capabilities.maps_ranks || !has_whole_pages(bytes)) return {};
  // One block stands for the pieces of all ranks. A device without memory provides addresses for
  // it.
  return RanksView(allocate(bytes * group_.size));
}

void SimulatedCommunicator::issue(const Collective& collective, Stream& stream) {
  if (group_.on_issue) group_.on_issue(collective, stream);
  if (collective.operation == Operation::kBarrier) return;
  if (group_.peers != SimulatedPeers::kAbsent && hears(collective)) {
    // The parts are copied, because a threaded stream runs the function later, when the caller's
    // span of parts may be invalid.
    const auto parts = collective.parts;
    stream.call([this, op = collective.operation, reduce_op = collective.reduce_op,
                 kept = std::vector(parts.begin(), parts.end())] {
      for (const CollectivePart& part : kept) move(op, reduce_op, part);
    });
  }
  const bool on_wire = collective.operation == Operation::kAllGather ||
                       collective.operation == Operation::kReduceScatter;
  // The sleep is work of the stream, so on a threaded stream it overlaps with compute, as a real
  // transfer does.
  if (on_wire && group_.wire_time.count() != 0) {
    stream.call([time = group_.wire_time] { std::this_thread::sleep_for(time); });
  }
}

// Returns false for a broadcast from a silent peer, which sends nothing.
bool SimulatedCommunicator::hears(const Collective& collective) const {
  return collective.operation != Operation::kBroadcast || collective.root == group_.rank ||
         group_.peers != SimulatedPeers::kSilent;
}

void SimulatedCommunicator::move(Operation operation, ReduceOp op,
                                 const CollectivePart& part) const {
  switch (operation) {
    case Operation::kAllGather:
      return gather(part);
    case Operation::kReduceScatter:
      return reduce(part, group_.rank * part.numel, op);
    case Operation::kAllReduce:
      return reduce(part, 0, op);
    case Operation::kBroadcast:
      return copy_sent(part, 0, part.numel, part.recv);
    case Operation::kBarrier:
      return;
  }
}

// Reduces the elements of `send` from `begin` on, as if every rank of the group had sent these
// elements.
void SimulatedCommunicator::reduce(const CollectivePart& part, int64_t begin, ReduceOp op) const {
  copy_sent(part, begin, part.numel, part.recv);
  if (group_.peers == SimulatedPeers::kSilent) return;
  // All sources are this rank's input, which is in place: reduce allows a source that is also the
  // output.
  const std::vector<const void*> sources(group_.size, part.recv);
  reduce_in_order(sources, part.recv, part.numel, part.dtype, op);
}

void SimulatedCommunicator::gather(const CollectivePart& part) const {
  for (int rank = 0; rank < group_.size; ++rank) {
    // Pieces of silent peers do not change.
    if (rank != group_.rank && group_.peers == SimulatedPeers::kSilent) continue;
    copy_sent(part, 0, part.numel, static_cast<std::byte*>(part.recv) + rank * bytes_of(part));
  }
}

std::unique_ptr<Communicator> SimulatedCommunicator::split(int, int) {
  return std::make_unique<SimulatedCommunicator>(group_);
}

std::unique_ptr<Communicator> SimulatedCommunicator::with_windows(bool by_copy_engines) {
  if (!group_.has_windows) return Communicator::with_windows(by_copy_engines);
  return std::make_unique<SimulatedCommunicator>(group_);
}

}  // namespace fsdp
