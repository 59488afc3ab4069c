#include "comm/cpu/group_barrier.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/cpu_features.h"
#include "comm/job/collective_failures.h"
#include "comm/job/futex.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// The number of polls before a wait yields. They take 10–40 µs, and a write of a peer becomes
// visible much sooner.
constexpr int kSpins = 400;
constexpr auto kYieldFor = std::chrono::microseconds(100);
// If a yield took this long, another program had the core for a time slice. A thread that sleeps
// gets a core as soon as it is woken. So after such a yield, the next kSleepsAfterLongYield waits
// sleep at once, without a yield.
constexpr auto kLongYield = std::chrono::milliseconds(1);
constexpr int kSleepsAfterLongYield = 200;
// The longest sleep of a wait. A wait that sleeps notices a dead peer within this time.
constexpr auto kSleepAtMost = std::chrono::milliseconds(20);
// If a sleep lasted longer than this, the process was stopped, for example by Ctrl-Z, which stops
// the whole job. The time of this sleep does not count towards the time-out, because no peer was
// late.
constexpr auto kStopped = std::chrono::milliseconds(200);
// The longest time for which a failed thread rank waits until no rank reads. It is limited, because
// a thread that hangs while it reads must not prevent the other ranks from throwing their errors.
constexpr auto kReadersGrace = std::chrono::seconds(10);
// The time for which a peer's wait for another host counts as its reason to be late, in time-outs.
constexpr int kLongestTrust = 2;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns how often a wait polls before it yields. If there are fewer cores than ranks, polling
// would take the core from a rank that has not arrived yet.
int spins_for(int ranks) { return ranks <= usable_cores() ? kSpins : 0; }

std::string in_different_communicators(uint64_t sequence) {
  return fmt::format("collective #{}, on different communicators", place_of(sequence));
}

}  // namespace

GroupBarrier::GroupBarrier(std::shared_ptr<const JobMember> member, RankGroup group)
    : member_(std::move(member)),
      group_(std::move(group)),
      spins_(spins_for(member_->control().local().count)),
      watch_(member_->timeout()) {
  for (const int rank : group_.ranks) {
    endpoints_.push_back(&member_->control().endpoint(group_.channel, rank));
  }
}

void GroupBarrier::open(const CollectiveRecord& record) {
  record_ = record;
  if (member_->has_failed()) member_->throw_failure(describe(record_));
  ++opened_;
  // The barrier that follows makes these writes visible to all ranks.
  mine().records[parity()] = record;
  mine().fingerprints[parity()] = fingerprint_of(record);
  mine().sequence.store(record.sequence, std::memory_order_release);
}

void GroupBarrier::arrive_and_wait() {
  ++phase_;
  awaited_ = 0;
  mine().phase.store(phase_, std::memory_order_seq_cst);
  if (all_arrived()) {
    // The last rank to arrive sees that all others have arrived, so only this rank must wake ranks
    // that sleep.
    WaitQueue& queue = member_->control().wait_queue(group_.channel);
    if (queue.sleepers.load(std::memory_order_seq_cst) != 0) {
      queue.wakes.fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(queue.wakes);
    }
  } else {
    wait();
  }
  if (member_->has_failed()) leave();
}

// Phases only increase, so ranks below awaited_ need not be checked again.
bool GroupBarrier::all_arrived() {
  while (awaited_ < group_.size() &&
         endpoint(awaited_).phase.load(std::memory_order_seq_cst) >= phase_) {
    ++awaited_;
  }
  return awaited_ == group_.size();
}

void GroupBarrier::wait() {
  // A wait has three stages. First the wait polls, because a peer may arrive within microseconds.
  // Then the wait yields, because a peer may need this core. At last the wait sleeps. Only a wait
  // that sleeps checks for peers that are gone or late.
  for (int i = 0; i < spins_; ++i) {
    if (all_arrived()) return;
    relax();
  }
  const auto start = Clock::now();
  watch_.begin();
  const bool yields = sleeps_to_come_ == 0;
  if (!yields) --sleeps_to_come_;
  auto now = start;
  while (!all_arrived()) {
    if (member_->has_failed()) leave();
    const bool yielding = yields && now - start < kYieldFor;
    if (yielding) {
      sched_yield();
    } else {
      sleep_once();
    }
    const auto before = std::exchange(now, Clock::now());
    if (now - before > kStopped) watch_.take_off(now - before);
    if (yielding) {
      // A long yield means that the core is busy. The stage of yields is too short for a peer to be
      // late, so peers are not checked in it.
      if (now - before > kLongYield) sleeps_to_come_ = kSleepsAfterLongYield;
      continue;
    }
    if (all_arrived()) return;
    check_peers();
    check_other_channels();
    check_devices();
    check_slow();
    check_deadline();
  }
}

void GroupBarrier::sleep_once() {
  WaitQueue& queue = member_->control().wait_queue(group_.channel);
  // The rank registers as a sleeper before it checks the phases again. All of these operations are
  // seq_cst, so either the last rank to arrive sees a sleeper, or this rank sees that the last rank
  // has arrived. A wake before futex_wait changes `wakes`, so futex_wait returns at once.
  queue.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = queue.wakes.load(std::memory_order_seq_cst);
  if (!all_arrived() && !member_->has_failed()) futex_wait(queue.wakes, seen, kSleepAtMost);
  queue.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void GroupBarrier::check_peers() {
  for (int i = awaited_; i < group_.size(); ++i) {
    const int peer = group_.ranks[i];
    const std::optional<PeerEnd> end = member_->end_of(peer);
    // The peer's end is read before its phase. A peer arrives at its last barrier before it
    // finishes, so if its end is visible, the phase read afterwards is its last one.
    if (!end || endpoint(i).phase.load(std::memory_order_seq_cst) >= phase_) continue;
    // If there is a launcher, this rank may notice the peer's death before the launcher has
    // reported the cause. may_tell() is then false for half a second, to give the launcher time.
    const bool has_launcher = member_->control().header().has_launcher.load() != 0;
    if (!watch_.may_tell(*end, has_launcher)) continue;
    // The error names this collective, because this collective needs the peer. Other ranks throw
    // the same error, even if they are still leaving the previous collective.
    Failure failure = failure_of_end(member_->control(), peer, *end);
    failure.text.where = describe(record_);
    member_->fail(failure);
    leave();
  }
}

// [Note: disagreement across channels] Ranks that issue different collectives often wait in
// different channels: one gathers the next unit, another reduces. Let d be the first place of the
// collective sequence at which two ranks differ. All collectives before d complete sooner or later,
// in every channel, so both ranks open their collective with number d. If they open it in the same
// channel, compare() finds the difference. If they open it in two channels, this function finds it.
// There are no false alarms, because a rank uses each number only once. Suppose that the peer's
// collective with this number were complete. Then this rank would have taken part in it, and would
// not wait here with the same number. For the same reason the peer's record stays valid while it is
// read: the peer cannot continue without this rank. Some callers choose the numbers themselves and
// begin again in each channel. For them, is_open() excludes collectives that are complete. Groups
// of a split are compared only if they contain this rank, so the same reasoning applies to them.
// Two meshes of a rank never use the same number ([Note: orders of a job]).
void GroupBarrier::check_other_channels() const {
  const uint64_t sequence = record_.sequence;
  if (sequence == 0) return;
  const ControlSegment& control = member_->control();
  const int me = member_->rank();
  for (int channel = 0; channel < control.channels_of(me); ++channel) {
    if (channel == group_.channel) continue;
    // On a channel that all ranks use, the group numbers of this rank and of each peer are 0, so
    // every peer is compared.
    const uint32_t my_group = control.endpoint(channel, me).group.load();
    // Only local ranks use channels of the segment.
    const RankRange local = control.local();
    for (int peer = local.begin; local.contains(peer); ++peer) {
      const Endpoint& there = control.endpoint(channel, peer);
      if (peer == me || there.sequence.load(std::memory_order_acquire) != sequence ||
          there.group.load() != my_group || !is_open(channel, peer)) {
        continue;
      }
      // The endpoint has two records. The peer's open collective is the one with this number.
      const CollectiveRecord& theirs = there.records[there.records[0].sequence == sequence ? 0 : 1];
      disagree(me, record_, peer, theirs, in_different_communicators(sequence));
    }
  }
}

// If collectives run between GPUs, only the collectives of the control communicator use this
// barrier. If a peer has posted a collective between GPUs with the number of this rank's
// collective, the peer has continued and will not arrive here.
void GroupBarrier::check_devices() const {
  const uint64_t sequence = record_.sequence;
  if (sequence == 0) return;
  for (const int peer : group_.ranks) {
    if (peer == member_->rank()) continue;
    const PostedCollectives& posted = member_->control().posted(peer, order_of(sequence));
    if (const auto theirs = find_posted(posted, sequence)) {
      disagree(member_->rank(), record_, peer, theirs->record,
               in_different_communicators(sequence));
    }
  }
}

bool GroupBarrier::is_open(int channel, int peer) const {
  const ControlSegment& control = member_->control();
  const Endpoint& there = control.endpoint(channel, peer);
  const uint64_t reached = there.phase.load(std::memory_order_seq_cst);
  const RankRange local = control.local();
  for (int other = local.begin; local.contains(other); ++other) {
    const Endpoint& behind = control.endpoint(channel, other);
    if (behind.group.load() == there.group.load() &&
        behind.phase.load(std::memory_order_seq_cst) < reached) {
      return true;
    }
  }
  return false;
}

bool GroupBarrier::is_ahead_elsewhere(int peer) const {
  for (int channel = 0; channel < member_->control().channels_of(peer); ++channel) {
    if (is_open(channel, peer)) return true;
  }
  return false;
}

std::vector<int> GroupBarrier::absent() const {
  // A missing peer that waits for another host does not cause the delay. The time-out of its own
  // wait ends the job with the name of the rank that does. The limit below is for a peer that was
  // stopped during such a wait.
  const bool trusts_waits = watch_.waited() < kLongestTrust * member_->timeout();
  std::vector<int> absent;
  for (int i = 0; i < group_.size(); ++i) {
    if (endpoint(i).phase.load(std::memory_order_seq_cst) >= phase_) continue;
    const int peer = group_.ranks[i];
    if (trusts_waits && member_->control().status(peer).host_waits.load() != 0) continue;
    absent.push_back(peer);
  }
  // A missing peer that itself waits for a rank in another channel does not cause the delay. If
  // this is true of all missing ranks, they wait for each other, and all of them are returned.
  std::vector<int> to_blame;
  std::copy_if(absent.begin(), absent.end(), std::back_inserter(to_blame),
               [this](int peer) { return !is_ahead_elsewhere(peer); });
  return to_blame.empty() ? absent : to_blame;
}

void GroupBarrier::check_slow() {
  if (!watch_.becomes_slow()) return;
  for (const int peer : absent()) {
    member_->report_slow(
        {.rank = peer, .waited = watch_.waited(), .collective = describe(record_)});
  }
}

void GroupBarrier::check_deadline() const {
  if (!watch_.is_over()) return;
  const std::vector<int> missing = absent();
  // The last missing rank may have arrived just now. Then the wait ends without an error. Or all
  // missing ranks wait for other hosts.
  if (missing.empty()) return;
  member_->fail(ranks_are_missing(missing, member_->timeout(), describe(record_)));
  leave();
}

void GroupBarrier::compare() const {
  const Endpoint& first = endpoint(0);
  for (int i = 1; i < group_.size(); ++i) {
    const Endpoint& other = endpoint(i);
    if (first.fingerprints[parity()] == other.fingerprints[parity()]) continue;
    disagree(group_.ranks[0], first.records[parity()], group_.ranks[i], other.records[parity()],
             fmt::format("collective {} of the communicator", opened_));
  }
}

void GroupBarrier::disagree(int rank, const CollectiveRecord& record, int other_rank,
                            const CollectiveRecord& other, std::string where) const {
  member_->fail(ranks_disagree(rank, record, other_rank, other, std::move(where)));
  leave();
}

void GroupBarrier::leave() const {
  // Only threads wait for readers. A process reads another process's memory through its own
  // mapping, which stays valid, and it does not use the data of a failed job. Also, a process that
  // is stopped while it reads would block the ranks that still run.
  if (member_->kind() == RankKind::kThread) wait_for_readers();
  member_->throw_failure(describe(record_));
}

void GroupBarrier::wait_for_readers() const {
  const auto give_up = Clock::now() + kReadersGrace;
  for (int i = 0; i < group_.size(); ++i) {
    while (endpoint(i).reading.load(std::memory_order_seq_cst) != 0 &&
           !member_->end_of(group_.ranks[i]) && Clock::now() < give_up) {
      std::this_thread::yield();
    }
  }
}

GroupBarrier::Reading::Reading(const GroupBarrier& barrier) : barrier_(barrier) {
  // The flag is set before the failure is read, so either this rank sees the failure, or the failed
  // rank sees that this rank reads.
  barrier_.mine().reading.store(1, std::memory_order_seq_cst);
  if (barrier_.member_->has_failed()) {
    barrier_.mine().reading.store(0, std::memory_order_seq_cst);
    barrier_.leave();
  }
}

GroupBarrier::Reading::~Reading() { barrier_.mine().reading.store(0, std::memory_order_seq_cst); }

}  // namespace fsdp
