#include "comm/cpu/cpu_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "comm/collective_checks.h"
#include "comm/cpu/split.h"
#include "comm/reduce/reduce_in_order.h"
#include "comm/reduce/streaming_copy.h"
#include "comm/sent.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp {
namespace {

// Alignment in bytes of the slices' data. In the staging area slices begin at a cache line. In an
// eager buffer, which is small, they begin at a multiple of 8 bytes.
constexpr int64_t kStagedAlignment = 64;
constexpr int64_t kEagerAlignment = 8;
constexpr int64_t kHalfBytes = kStagingBytes / 2;

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

CpuCommunicator::CpuCommunicator(std::shared_ptr<const JobMember> member, RankGroup group)
    : member_(member), barrier_(std::move(member), std::move(group)), sources_(size()) {}

std::unique_ptr<Communicator> CpuCommunicator::split(int color, int key) {
  const auto exchange = [this](const SplitWish& mine) { return exchange_wishes(*this, mine); };
  return make_group(member_, agree_on_split(*member_, barrier_.group(), exchange, color, key));
}

void CpuCommunicator::abort(std::string_view cause) noexcept {
  member_->fail(failure_of_abort(member_->rank(), cause));
}

void CpuCommunicator::issue(const Collective& collective, Stream& stream) {
  require_valid(collective, size());
  const CollectiveRecord record = make_record(collective);
  CpuStream& cpu = cpu_stream(stream);
  if (cpu.is_inline()) {
    execute(collective.parts, record);
  } else {
    // The stream runs the work later. By then the caller's span of parts may be invalid, so the
    // parts are copied. The memory and the lists of runs to which the parts point need no copy:
    // Communicator requires that they stay valid until the work is done.
    cpu.run([this, record, kept = std::vector(collective.parts.begin(), collective.parts.end())] {
      execute(kept, record);
    });
  }
}

void CpuCommunicator::execute(std::span<const CollectivePart> parts,
                              const CollectiveRecord& record) {
  if (size() == 1) {
    if (member_->has_failed()) member_->throw_failure(describe(record));
    return execute_alone(parts);
  }
  // The loop runs at least once, because a barrier has no parts but needs an exchange. One exchange
  // covers at most kMaxParts parts, because an endpoint describes at most that many parts.
  do {
    const auto here = parts.first(std::min<size_t>(parts.size(), kMaxParts));
    parts = parts.subspan(here.size());
    Call call{.parts = here, .record = record};
    if (traits_of(record.operation).sends_to_each) call.pieces = size();
    int64_t eager_bytes = 0;
    for (const CollectivePart& part : here) {
      eager_bytes += round_up(bytes_of(part, part.numel) * call.pieces, kEagerAlignment);
    }
    // Ranks with equal records get the same value of is_eager. Ranks with different records also
    // pass the first barrier, and then compare() throws.
    call.is_eager = eager_bytes <= kEagerBytes;
    call.is_eager ? exchange_eagerly(call) : exchange_through_memory(call);
  } while (!parts.empty());
}

void CpuCommunicator::execute_alone(std::span<const CollectivePart> parts) const {
  for (const CollectivePart& part : parts) copy_sent(part, 0, part.numel, part.recv);
}

// One barrier per collective is enough. A rank uses two eager buffers in turn, so it writes the
// buffer of this collective again only in the collective after the next one. No rank passes the
// barrier of the next collective before all ranks have read this buffer.
void CpuCommunicator::exchange_eagerly(const Call& call) {
  barrier_.open(call.record);
  find_slices(call, {}, kEagerBytes, 0, slices_);
  stage(call, slices_, barrier_.mine().eager[barrier_.parity()].data());
  barrier_.arrive_and_wait();
  barrier_.compare();
  move(call);
}

// [Note: in place] No rank writes memory that a peer may read before the next barrier. all_gather
// and broadcast write only data that other ranks sent. reduce_scatter writes this rank's own piece,
// which only this rank reads. The first step of all_reduce writes this rank's share, which only
// this rank reads. The second step writes the other shares of recv, while peers read only this
// rank's share.
//
// [Note: rounds] If any rank stages data, all ranks exchange in rounds. The staging area has two
// halves, which the rounds use in turn. A rank stages the next round in one half while its peers
// read the current round from the other half. One barrier ends the staging and the reading.
// all_reduce stages every round in the first half, because its results need the second half. The
// first half is free again when all ranks have reduced.
void CpuCommunicator::exchange_through_memory(const Call& call) {
  const bool in_two_steps = call.record.operation == Operation::kAllReduce;
  barrier_.open(call.record);
  const bool staged_here = publish_parts(call);
  std::byte* const area = staged_here ? resolve(member_->rank(), staging_place()) : nullptr;
  find_slices(call, {}, kHalfBytes, 0, slices_);
  if (staged_here) stage(call, slices_, area);
  barrier_.arrive_and_wait();
  barrier_.compare();
  // All ranks read the `staged` flags of all ranks, so they run the same number of rounds.
  bool staged_anywhere = false;
  for (int peer = 0; peer < size(); ++peer) staged_anywhere |= barrier_.endpoint(peer).staged;
  // If no data pass through the staging area, one round covers all elements of all parts.
  if (!staged_anywhere) find_slices(call, {}, std::numeric_limits<int64_t>::max(), 0, slices_);
  for (int64_t next_half = kHalfBytes;; next_half = kHalfBytes - next_half) {
    {
      const GroupBarrier::Reading reading(barrier_);
      move(call);
    }
    // The first step of an all_reduce ends here: every rank's share of the result must be complete
    // before any rank copies it.
    if (in_two_steps) {
      barrier_.arrive_and_wait();
      const GroupBarrier::Reading reading(barrier_);
      spread_shares(call);
    }
    find_slices(call, slices_.back(), kHalfBytes, in_two_steps ? 0 : next_half, upcoming_);
    if (staged_here) stage(call, upcoming_, area);
    barrier_.arrive_and_wait();
    // After this barrier all peers have read the data of this round, so the memory of these data
    // may be written again.
    if (upcoming_.empty()) return;
    slices_.swap(upcoming_);
  }
}

bool CpuCommunicator::sends(const Call& call) const {
  return call.record.operation != Operation::kBroadcast || call.record.root == rank();
}

bool CpuCommunicator::publish_parts(const Call& call) {
  Endpoint& endpoint = barrier_.mine();
  endpoint.staged = false;
  for (size_t i = 0; i < call.parts.size(); ++i) {
    const CollectivePart& part = call.parts[i];
    const int64_t bytes = bytes_of(part, part.numel);
    PublishedPart& place = endpoint.parts[i];
    place = {.send = 0, .recv = 0, .send_direct = true, .recv_direct = true};
    if (bytes == 0) continue;
    if (sends(call)) {
      std::optional<uint64_t> send;
      // The input of a part with runs is not contiguous, so no single address describes it, and it
      // is always staged.
      if (part.runs.empty()) send = publish(part.send, bytes * call.pieces);
      place.send_direct = send.has_value();
      place.send = send ? *send : staging_place();
    }
    if (call.record.operation == Operation::kAllReduce) {
      // After the reduction, peers copy this rank's share of the result from `recv`.
      const auto recv = publish(part.recv, bytes);
      place.recv_direct = recv.has_value();
      place.recv = recv ? *recv : staging_place() + kHalfBytes;
    }
    endpoint.staged |= !place.send_direct || !place.recv_direct;
  }
  return endpoint.staged;
}

// Finds the slices of a round. The slices begin after the slice `after` or, if that is empty, at
// the start. The slices cover as many elements as fit into `capacity` bytes. Their data are staged
// from `staged_at` on.
void CpuCommunicator::find_slices(const Call& call, const Slice& after, int64_t capacity,
                                  int64_t staged_at, std::vector<Slice>& slices) {
  slices.clear();
  const int64_t alignment = call.is_eager ? kEagerAlignment : kStagedAlignment;
  int64_t used = 0;
  int64_t begin = after.begin + after.numel;
  for (int i = after.part; i < static_cast<int>(call.parts.size()); ++i, begin = 0) {
    const CollectivePart& part = call.parts[i];
    if (begin == part.numel) continue;
    const int64_t fits = (capacity - used) / (size_of(part.dtype) * call.pieces);
    const int64_t numel = std::min(part.numel - begin, fits);
    if (numel == 0) break;
    slices.push_back({.part = i, .begin = begin, .numel = numel, .staged_at = staged_at + used});
    if (begin + numel < part.numel) break;
    used += bytes_of(part, numel) * call.pieces;
    if (used > capacity - alignment) break;
    used = round_up(used, alignment);
  }
}

// Returns the address of this rank's own input for `piece` of the slice. If this input is not
// contiguous, returns null, and the rank reads its staged copy.
const std::byte* CpuCommunicator::own_together(const Call& call, const Slice& slice,
                                               int piece) const {
  const CollectivePart& part = call.parts[slice.part];
  return sent_together(part, piece * part.numel + slice.begin, slice.numel);
}

void CpuCommunicator::stage(const Call& call, const std::vector<Slice>& slices,
                            std::byte* area) const {
  if (!sends(call)) return;
  for (const Slice& slice : slices) {
    const CollectivePart& part = call.parts[slice.part];
    if (!call.is_eager && barrier_.mine().parts[slice.part].send_direct) continue;
    const int64_t bytes = bytes_of(part, slice.numel);
    for (int piece = 0; piece < call.pieces; ++piece) {
      // No peer reads the piece that this rank itself reduces, so it is not staged.
      const bool own = call.pieces > 1 && piece == rank();
      if (own && own_together(call, slice, piece) != nullptr) continue;
      copy_sent(part, piece * part.numel + slice.begin, slice.numel,
                area + slice.staged_at + piece * bytes);
    }
  }
}

const std::byte* CpuCommunicator::source(const Call& call, const Slice& slice, int peer,
                                         int piece) const {
  const CollectivePart& part = call.parts[slice.part];
  const int64_t staged_at = slice.staged_at + piece * bytes_of(part, slice.numel);
  if (peer == rank()) {
    if (const std::byte* together = own_together(call, slice, piece)) return together;
  }
  const Endpoint& endpoint = barrier_.endpoint(peer);
  if (call.is_eager) return endpoint.eager[barrier_.parity()].data() + staged_at;
  const PublishedPart& place = endpoint.parts[slice.part];
  const int64_t element = piece * part.numel + slice.begin;
  return resolve(job_rank(peer), place.send) +
         (place.send_direct ? bytes_of(part, element) : staged_at);
}

void CpuCommunicator::move(const Call& call) {
  for (const Slice& slice : slices_) {
    const CollectivePart& part = call.parts[slice.part];
    switch (call.record.operation) {
      case Operation::kAllGather:
        gather(call, slice);
        break;
      case Operation::kBroadcast:
        copy_bytes(received(part, slice.begin), source(call, slice, call.record.root, 0),
                   bytes_of(part, slice.numel));
        break;
      case Operation::kReduceScatter:
        reduce(call, slice, rank(), received(part, slice.begin), 0, slice.numel);
        break;
      case Operation::kAllReduce: {
        // An eager all_reduce has few elements, so each rank reduces all of them. This saves the
        // barrier that a large all_reduce has between its two steps.
        if (call.is_eager) {
          reduce(call, slice, 0, received(part, slice.begin), 0, slice.numel);
          break;
        }
        const auto [begin, end] = share_of(rank(), size(), slice.numel);
        reduce(call, slice, 0, reduced(call, slice, rank()) + bytes_of(part, begin), begin,
               end - begin);
        break;
      }
      case Operation::kBarrier:
        break;
    }
  }
}

void CpuCommunicator::gather(const Call& call, const Slice& slice) {
  const CollectivePart& part = call.parts[slice.part];
  const int64_t bytes = bytes_of(part, slice.numel);
  // The left side of the comparison is the number of bytes that all ranks together write in this
  // gather, over all rounds.
  const bool streams = bytes_of(part, part.numel) * size() * size() >= kStreamFromBytes;
  for (int step = 0; step < size(); ++step) {
    // Each rank first copies its own piece, then the pieces of the ranks after it, so that the
    // ranks do not all read the same peer at once.
    const int peer = (rank() + step) % size();
    (streams ? copy_streaming : copy_bytes)(received(part, peer * part.numel + slice.begin),
                                            source(call, slice, peer, 0), bytes);
  }
  if (streams) finish_streaming();
}

void CpuCommunicator::reduce(const Call& call, const Slice& slice, int piece, void* out,
                             int64_t skip, int64_t numel) {
  const CollectivePart& part = call.parts[slice.part];
  for (int peer = 0; peer < size(); ++peer) {
    sources_[peer] = source(call, slice, peer, piece) + bytes_of(part, skip);
  }
  reduce_in_order(sources_, out, numel, part.dtype, call.record.reduce_op);
}

// Returns the address to which `peer` writes its share of an all_reduce slice.
std::byte* CpuCommunicator::reduced(const Call& call, const Slice& slice, int peer) const {
  const CollectivePart& part = call.parts[slice.part];
  const PublishedPart& place = barrier_.endpoint(peer).parts[slice.part];
  return resolve(job_rank(peer), place.recv) +
         (place.recv_direct ? bytes_of(part, slice.begin) : slice.staged_at);
}

void CpuCommunicator::spread_shares(const Call& call) {
  for (const Slice& slice : slices_) {
    const CollectivePart& part = call.parts[slice.part];
    for (int step = 0; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      const auto [begin, end] = share_of(peer, size(), slice.numel);
      copy_bytes(received(part, slice.begin + begin),
                 reduced(call, slice, peer) + bytes_of(part, begin), bytes_of(part, end - begin));
    }
  }
}

}  // namespace fsdp
