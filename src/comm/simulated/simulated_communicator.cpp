#include "comm/simulated/simulated_communicator.h"

#include <cstddef>
#include <thread>
#include <vector>

#include "comm/reduce/reduce_in_order.h"
#include "comm/sent.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

int64_t bytes_of(const CollectivePart& part) { return part.numel * size_of(part.dtype); }

}  // namespace

Buffer SimulatedCommunicator::allocate(int64_t bytes) { return allocate_host(bytes); }

template <class Result>
void SimulatedCommunicator::issue(std::span<const CollectivePart> parts,
                                  std::chrono::nanoseconds wire_time, Result result,
                                  Stream& stream) const {
  if (group_.peers != SimulatedPeers::kAbsent) {
    stream.call([kept = std::vector(parts.begin(), parts.end()), result] {
      for (const CollectivePart& part : kept) result(part);
    });
  }
  if (wire_time.count() != 0) {
    stream.call([wire_time] { std::this_thread::sleep_for(wire_time); });
  }
}

// The reduction of as many equal contributions as there are ranks, from element `begin` of send on.
void SimulatedCommunicator::reduce(const CollectivePart& part, int64_t begin, ReduceOp op) const {
  copy_sent(part, begin, part.numel, part.recv);
  if (group_.peers == SimulatedPeers::kSilent) return;
  const std::vector<const void*> sources(group_.size, part.recv);
  reduce_in_order(sources, part.recv, part.numel, part.dtype, op);
}

void SimulatedCommunicator::gather(const CollectivePart& part) const {
  for (int rank = 0; rank < group_.size; ++rank) {
    if (rank != group_.rank && group_.peers == SimulatedPeers::kSilent) continue;
    copy_sent(part, 0, part.numel, static_cast<std::byte*>(part.recv) + rank * bytes_of(part));
  }
}

void SimulatedCommunicator::all_gather(std::span<const CollectivePart> parts, CollectiveTag,
                                       Stream& stream) {
  issue(
      parts, group_.wire_time, [this](const CollectivePart& part) { gather(part); }, stream);
}

void SimulatedCommunicator::reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op,
                                           CollectiveTag, Stream& stream) {
  issue(
      parts, group_.wire_time,
      [this, op](const CollectivePart& part) { reduce(part, group_.rank * part.numel, op); },
      stream);
}

void SimulatedCommunicator::all_reduce(std::span<const CollectivePart> parts, ReduceOp op,
                                       CollectiveTag, Stream& stream) {
  issue(
      parts, {}, [this, op](const CollectivePart& part) { reduce(part, 0, op); }, stream);
}

void SimulatedCommunicator::broadcast(std::span<const CollectivePart> parts, int root,
                                      CollectiveTag, Stream& stream) {
  if (group_.peers == SimulatedPeers::kSilent && root != group_.rank) return;
  issue(
      parts, {}, [](const CollectivePart& part) { copy_sent(part, 0, part.numel, part.recv); },
      stream);
}

std::unique_ptr<Communicator> SimulatedCommunicator::split(int, int) {
  return std::make_unique<SimulatedCommunicator>(group_);
}

}  // namespace fsdp
