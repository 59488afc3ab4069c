#include "comm/hosts/host_reduction.h"

#include <algorithm>

#include "base/bytes.h"
#include "comm/reduce/reduce_in_order.h"
#include "comm/sent.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

constexpr int64_t kHalfBytes = 8 << 20;
constexpr int64_t kLeastBlockBytes = 16 << 10;
constexpr int64_t kSliceAlignment = 64;

}  // namespace

int64_t HostReduction::block_bytes() const {
  const int64_t share = kHalfBytes / (2 * place_.hosts);
  return std::max(kLeastBlockBytes, share / kSliceAlignment * kSliceAlignment);
}

std::byte* HostReduction::to_send(Half& half, int host) const {
  return static_cast<std::byte*>(half.memory.data()) + host * block_bytes();
}

std::byte* HostReduction::received(Half& half, int host) const {
  return to_send(half, place_.hosts + host);
}

// Divides the parts into rounds. In a round, the data for one host fit into a block.
std::vector<HostReduction::Slices> HostReduction::rounds_of(
    std::span<const CollectivePart> parts) const {
  std::vector<Slices> rounds;
  int64_t used = block_bytes();  // the first slice begins a round
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t size = size_of(parts[i].dtype);
    for (int64_t begin = 0; begin < parts[i].numel;) {
      if (used + size > block_bytes()) {
        rounds.emplace_back();
        used = 0;
      }
      const int64_t numel = std::min(parts[i].numel - begin, (block_bytes() - used) / size);
      rounds.back().push_back({.part = i, .begin = begin, .numel = numel, .at = used});
      begin += numel;
      used = round_up(used + numel * size, kSliceAlignment);
    }
  }
  return rounds;
}

void HostReduction::run(std::span<const CollectivePart> parts, Pieces pieces, ReduceOp op,
                        HostExchange& exchange) {
  const Call call{parts, pieces, op, exchange};
  try {
    run_rounds(call);
  } catch (...) {
    // Messages in flight may use memory that the caller frees.
    for (Half& half : halves_) {
      half.sent.clear();
      half.received.clear();
    }
    throw;
  }
}

void HostReduction::run_rounds(const Call& call) {
  const std::vector<Slices> rounds = rounds_of(call.parts);
  for (size_t i = 0; i <= rounds.size(); ++i) {
    if (i < rounds.size()) {
      Half& half = halves_[i % 2];
      if (!half.memory) half.memory = allocate_host(2 * place_.hosts * block_bytes());
      reduce_inside(call, rounds[i], half);
      exchange_sums(call, rounds[i], half);
    }
    if (i > 0) reduce_hosts(call, rounds[i - 1], halves_[(i - 1) % 2]);
  }
}

// Returns the address of the data for `host`, if these data need not be in a block: they are the
// contiguous input of this rank, which is alone on its host. Otherwise returns null. The input of
// kWhole may be overwritten by the result while it is still being sent, so it is copied.
const std::byte* HostReduction::in_place(const Call& call, const Slices& slices, int host) const {
  if (inside_ != nullptr || slices.size() > 1 || call.pieces == Pieces::kWhole) return nullptr;
  const CollectivePart& part = call.parts[slices.front().part];
  return sent_together(part, host * part.numel + slices.front().begin, slices.front().numel);
}

// Writes the sums of this host's ranks into the blocks for the hosts. If the part is reduced as a
// whole, all hosts get the same data, which are in the block of this host.
void HostReduction::reduce_inside(const Call& call, const Slices& slices, Half& half) {
  const bool whole = call.pieces == Pieces::kWhole;
  std::vector<CollectivePart> sums;
  std::vector<std::vector<SendRun>> runs;
  for (const Slice& slice : slices) {
    const CollectivePart& part = call.parts[slice.part];
    for (int host = 0; host < place_.hosts; ++host) {
      if (whole && host != place_.host) continue;
      std::byte* const to = to_send(half, host) + slice.at;
      if (inside_ == nullptr) {
        if (in_place(call, slices, host) != nullptr) continue;
        const int64_t piece = whole ? 0 : host;
        copy_sent(part, piece * part.numel + slice.begin, slice.numel, to);
        continue;
      }
      // The input of a reduce_scatter inside are the pieces of the ranks of `host`.
      std::vector<SendRun>& input = runs.emplace_back();
      for (int rank = 0; rank < (whole ? 1 : place_.ranks_of_host); ++rank) {
        const int64_t piece = whole ? 0 : int64_t{host} * place_.ranks_of_host + rank;
        append_runs(part, piece * part.numel + slice.begin, slice.numel, input);
      }
      CollectivePart sum{.recv = to, .numel = slice.numel, .dtype = part.dtype};
      if (input.size() == 1) {
        sum.send = input.front().data;  // contiguous memory needs no copy
      } else {
        sum.runs = input;
      }
      sums.push_back(sum);
    }
  }
  if (inside_ == nullptr) return;
  inside_->issue({.operation = whole ? Operation::kAllReduce : Operation::kReduceScatter,
                  .parts = sums,
                  .tag = {.label = call.exchange.record().label.data()},
                  // Only the sum over all hosts is divided.
                  .reduce_op = call.op == ReduceOp::kAvg ? ReduceOp::kSum : call.op},
                 cpu_device().compute_stream());
}

void HostReduction::exchange_sums(const Call& call, const Slices& slices, Half& half) {
  const Slice& last = slices.back();
  const int64_t bytes = last.at + last.numel * size_of(call.parts[last.part].dtype);
  for (int other = 0; other < place_.hosts; ++other) {
    if (other == place_.host) continue;
    const int block = call.pieces == Pieces::kWhole ? place_.host : other;
    call.exchange.receive(other, received(half, other), bytes, half.received);
    const std::byte* const direct = in_place(call, slices, other);
    call.exchange.send(other, direct != nullptr ? direct : to_send(half, block), bytes, half.sent);
  }
}

void HostReduction::reduce_hosts(const Call& call, const Slices& slices, Half& half) {
  call.exchange.wait(half.received);
  const std::byte* const direct = in_place(call, slices, place_.host);
  std::vector<const void*> sources(static_cast<size_t>(place_.hosts));
  for (const Slice& slice : slices) {
    const CollectivePart& part = call.parts[slice.part];
    for (int host = 0; host < place_.hosts; ++host) {
      sources[static_cast<size_t>(host)] = received(half, host) + slice.at;
    }
    sources[static_cast<size_t>(place_.host)] =
        direct != nullptr ? direct : to_send(half, place_.host) + slice.at;
    void* const to = static_cast<std::byte*>(part.recv) + slice.begin * size_of(part.dtype);
    reduce_in_order(sources, to, slice.numel, part.dtype, call.op,
                    static_cast<size_t>(place_.hosts) * place_.ranks_of_host);
  }
  // The half can be written again when its data have been sent.
  call.exchange.wait(half.sent);
}

}  // namespace fsdp
