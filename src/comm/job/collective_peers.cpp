#include "comm/job/collective_peers.h"

#include <algorithm>
#include <iterator>

#include "comm/job/collective_failures.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

// The longest wait for answers from other hosts. Each rank there may need some time to share its
// posts.
constexpr auto kAnswersWithin = milliseconds(3000);

PostedCollective posted_on(const std::string& communicator, const CollectiveRecord& record) {
  return {.record = record, .communicator = hash_of(communicator)};
}

}  // namespace

std::optional<Failure> CollectivePeers::post(const std::string& communicator,
                                             const std::vector<int>& ranks,
                                             const CollectiveRecord& record) {
  const PostedCollective posted = posted_on(communicator, record);
  plane_.post(posted);
  const uint64_t own_mark = mark_of(posted);
  const int own = plane_.rank();
  for (const int peer : ranks) {
    if (peer == own) continue;
    // The mark is compared first, because it is cheaper to read than the record: two words. The
    // records are read only if the marks differ, which is rare.
    const auto mark = plane_.posted_mark(peer, record.sequence);
    if (!mark || *mark == own_mark) continue;
    if (const auto theirs = plane_.posted(peer, record.sequence)) {
      return ranks_disagree(own, posted, peer, *theirs);
    }
  }
  return std::nullopt;
}

std::optional<Failure> CollectivePeers::gone(const std::vector<int>& ranks, const CallPlace& place,
                                             PeerWatch& watch) const {
  const CollectiveRecord* const record = place.record();
  for (const int peer : ranks) {
    if (peer == plane_.rank()) continue;
    const std::optional<PeerEnd> end = plane_.end_of(peer);
    if (!end) continue;
    // A finished rank may have issued its collective before it finished. If the collective has no
    // place in the sequence, this cannot be checked, and the rank counts as having issued it.
    const bool was_here =
        record != nullptr &&
        (record->sequence == 0 || plane_.last_posted(peer, record->sequence) >= record->sequence);
    if (*end == PeerEnd::kFinished && was_here) continue;
    // This code does not know whether the job has a launcher. So it waits as long as a launcher
    // may need to report why the peer ended.
    if (!watch.may_tell(*end, true)) continue;
    Failure failure = plane_.failure_of_end(peer, *end);
    failure.text.where = place.text();
    return failure;
  }
  return std::nullopt;
}

std::vector<int> CollectivePeers::behind(const std::vector<int>& ranks, uint64_t sequence) const {
  std::vector<int> late;
  const auto is_late = [&](int rank) {
    return rank != plane_.rank() && plane_.last_posted(rank, sequence) < sequence;
  };
  std::ranges::copy_if(ranks, std::back_inserter(late), is_late);
  if (!late.empty()) {
    // A late rank may itself wait for a rank that is further behind.
    const auto place = [&](int rank) { return plane_.last_posted(rank, sequence); };
    const uint64_t least = place(std::ranges::min(late, {}, place));
    std::erase_if(late, [&](int rank) { return place(rank) > least; });
    return late;
  }
  // All ranks of the group have arrived. Their streams may wait for an earlier collective at which
  // a rank of another group is missing. Ranks outside this mesh use other sequences, so such ranks
  // are not the cause.
  const uint64_t begin = begin_of_order(sequence);
  for (int rank = 0; rank < plane_.world_size(); ++rank) {
    const bool is_of_mesh = begin_of_order(plane_.last_posted(rank, sequence)) == begin;
    if (is_of_mesh && is_late(rank)) late.push_back(rank);
  }
  return late;
}

std::optional<Failure> CollectivePeers::late(const std::string& communicator,
                                             const std::vector<int>& ranks, const CallPlace& place,
                                             milliseconds within) const {
  const CollectiveRecord* const record = place.record();
  if (record == nullptr || record->sequence == 0) return std::nullopt;
  const std::vector<int> missing = behind(ranks, record->sequence);
  if (!missing.empty()) return ranks_are_missing(missing, within, place.text());
  const PostedCollective posted = posted_on(communicator, *record);
  const auto answers_by = PeerWatch::Clock::now() + kAnswersWithin;
  for (const int peer : ranks) {
    if (PeerWatch::Clock::now() > answers_by) break;
    const auto theirs = plane_.posted(peer, record->sequence);
    if (theirs && mark_of(*theirs) != mark_of(posted)) {
      return ranks_disagree(plane_.rank(), posted, peer, *theirs);
    }
  }
  return std::nullopt;
}

}  // namespace fsdp
