#include "comm/store/store_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "comm/collective_checks.h"
#include "comm/cpu/split.h"
#include "comm/job/collective_failures.h"
#include "comm/job/peer_watch.h"
#include "comm/reduce/reduce_in_order.h"
#include "comm/sent.h"
#include "fsdp/error.h"
#include "runtime/buffer.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

// The interval at which a wait checks for the job's failure.
constexpr auto kLookEvery = milliseconds(100);
constexpr auto kLookOfRank = milliseconds(4);  // per rank, to limit the store's load

int64_t piece_bytes(const CollectivePart& part) { return part.numel * size_of(part.dtype); }
// Returns the size of a part's input, rounded up so that the next part may have any dtype.
size_t sent_bytes(const CollectivePart& part, int pieces) {
  return static_cast<size_t>(round_up(pieces * piece_bytes(part), 8));
}

// Returns the record at the beginning of a rank's text.
CollectiveRecord record_in(const std::string& sent) {
  CollectiveRecord record{};
  if (sent.size() >= sizeof record) std::memcpy(&record, sent.data(), sizeof record);
  return record;
}

}  // namespace

StoreCommunicator::StoreCommunicator(std::shared_ptr<const JobMember> member, RankGroup group,
                                     std::unique_ptr<KeyValueStore> store, StoreIsLost lost)
    : member_(std::move(member)),
      group_(std::move(group)),
      store_(std::move(store)),
      name_(fmt::format("channel/{}/{}", group_.channel, group_.ranks.front())),
      lost_(std::move(lost)) {}

Buffer StoreCommunicator::allocate(int64_t bytes) { return allocate_host(bytes); }

void StoreCommunicator::abort(std::string_view cause) noexcept {
  member_->fail(failure_of_abort(member_->rank(), cause));
}

void StoreCommunicator::wait(const std::vector<std::string>& keys, const CollectiveRecord& record) {
  PeerWatch watch(member_->timeout());
  watch.begin();
  const auto step = std::max<milliseconds>(kLookEvery, size() * kLookOfRank);
  while (!store_->wait(keys, step)) {
    if (member_->has_failed()) member_->throw_failure(describe(record));
    const std::vector<bool> have = store_->have(keys);
    std::vector<int> missing;
    for (size_t peer = 0; peer < keys.size(); ++peer) {
      if (!have[peer]) missing.push_back(group_.ranks[peer]);
    }
    for (const int peer : missing) {
      const std::optional<PeerEnd> end = member_->end_of(peer);
      // Only if fsdp-run has started the ranks, a launcher reports how a process ended.
      const bool has_launcher = member_->control().header().has_launcher.load() != 0;
      if (!end || !watch.may_tell(*end, has_launcher)) continue;
      Failure failure = failure_of_end(member_->control(), peer, *end);
      failure.text.where = describe(record);
      member_->fail(failure);
      member_->throw_failure(describe(record));
    }
    // If all keys have been set since the last wait, no rank is missing, and the next wait
    // succeeds.
    if (missing.empty() || !watch.is_over()) continue;
    member_->fail(ranks_are_missing(missing, member_->timeout(), describe(record)));
    member_->throw_failure(describe(record));
  }
}

void StoreCommunicator::compare(const std::vector<std::string>& sent,
                                const CollectiveRecord& record) const {
  // All ranks read all records, so all find the same difference.
  const CollectiveRecord first = record_in(sent.front());
  for (int peer = 1; peer < size(); ++peer) {
    const CollectiveRecord other = record_in(sent[static_cast<size_t>(peer)]);
    if (fingerprint_of(first) == fingerprint_of(other)) continue;
    member_->fail(ranks_disagree(group_.ranks.front(), first,
                                 group_.ranks[static_cast<size_t>(peer)], other,
                                 fmt::format("collective {} of the communicator", count_)));
    member_->throw_failure(describe(record));
  }
}

void StoreCommunicator::issue(const Collective& collective, Stream& /*stream*/) {
  require_valid(collective, size());
  const CollectiveRecord record = make_record(collective);
  int pieces = collective.pieces_sent(size());
  if (collective.operation == Operation::kBroadcast && collective.root != rank()) pieces = 0;
  // Ranks other than the root send a text without parts, so that all ranks take part in the
  // exchange.
  const std::vector<std::string> sent = exchange(collective.parts, pieces, record);
  size_t at = 0;
  for (const CollectivePart& part : collective.parts) {
    receive(part, record, sent, at);
    at += sent_bytes(part, collective.pieces_sent(size()));
  }
}

// Writes the result of one part. `at` is the offset of the part's input in each rank's text.
void StoreCommunicator::receive(const CollectivePart& part, const CollectiveRecord& record,
                                const std::vector<std::string>& sent, size_t at) const {
  const auto bytes = static_cast<size_t>(piece_bytes(part));
  auto* to = static_cast<char*>(part.recv);
  switch (record.operation) {
    case Operation::kAllGather:
      for (const std::string& each : sent) {
        std::memcpy(to, each.data() + at, bytes);
        to += bytes;
      }
      return;
    case Operation::kBroadcast:
      std::memcpy(to, sent[static_cast<size_t>(record.root)].data() + at, bytes);
      return;
    case Operation::kReduceScatter:
      // The code below reduces this rank's piece of every rank's input, as for an all_reduce.
      at += static_cast<size_t>(rank()) * bytes;
      [[fallthrough]];
    case Operation::kAllReduce: {
      std::vector<const void*> sources;
      for (const std::string& each : sent) sources.push_back(each.data() + at);
      return reduce_in_order(sources, part.recv, part.numel, part.dtype, record.reduce_op);
    }
    case Operation::kBarrier:
      return;
  }
}

std::vector<std::string> StoreCommunicator::exchange(std::span<const CollectivePart> parts,
                                                     int pieces, const CollectiveRecord& record) {
  if (member_->has_failed()) member_->throw_failure(describe(record));
  try {
    return exchange_at_store(parts, pieces, record);
  } catch (const CommError& error) {  // the job has failed, or the store does not answer
    // If the store does not answer, it cannot distribute the failure, so the failure is stored in
    // this process's segment only.
    if (!member_->has_failed()) member_->fail(lost_(error.text().cause));
    member_->throw_failure(describe(record));
  }
}

// Writes this rank's key and reads the keys of all ranks. If all keys of a collective exist, every
// rank has read the keys of the previous collective. So each rank deletes its key of the previous
// collective.
std::vector<std::string> StoreCommunicator::exchange_at_store(std::span<const CollectivePart> parts,
                                                              int pieces,
                                                              const CollectiveRecord& record) {
  std::string mine(sizeof record, '\0');
  std::memcpy(mine.data(), &record, sizeof record);
  for (const CollectivePart& part : parts) {
    const size_t at = mine.size();
    mine.resize(at + sent_bytes(part, pieces));
    copy_sent(part, 0, pieces * part.numel, mine.data() + at);
  }
  const auto key = [this](uint64_t number, int of) {
    return fmt::format("{}/{}/{}", name_, number, of);
  };
  ++count_;
  store_->set(key(count_, rank()), mine);
  std::vector<std::string> keys;
  for (int peer = 0; peer < size(); ++peer) keys.push_back(key(count_, peer));
  wait(keys, record);
  if (count_ > 1) store_->forget(key(count_ - 1, rank()));
  std::vector<std::string> sent = store_->get(keys);
  compare(sent, record);
  for (std::string& each : sent) each.erase(0, sizeof record);
  return sent;
}

std::unique_ptr<Communicator> StoreCommunicator::split(int color, int key) {
  const auto exchange = [this](const SplitWish& mine) { return exchange_wishes(*this, mine); };
  RankGroup group = agree_on_split(*member_, group_, exchange, color, key);
  // The new communicator gets its own connection, because another thread may use it.
  return std::make_unique<StoreCommunicator>(member_, std::move(group), store_->connect_again(),
                                             lost_);
}

}  // namespace fsdp
