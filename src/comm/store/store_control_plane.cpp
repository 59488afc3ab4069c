#include "comm/store/store_control_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "comm/job/collective_failures.h"
#include "comm/store/store_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

constexpr auto kPause = milliseconds(250);
constexpr auto kPauseOfRank = milliseconds(4);  // per rank of the job, to limit the store's load
constexpr auto kAnswerWithin = milliseconds(2000);
constexpr auto kAskAgain = milliseconds(100);
constexpr char kEnds[] = "ends";

std::string posted_key(int rank) { return fmt::format("posted/{}", rank); }

std::vector<PostedCollective> posted_in(const std::string& records) {
  std::vector<PostedCollective> posted(records.size() / sizeof(PostedCollective));
  if (!posted.empty()) {
    std::memcpy(posted.data(), records.data(), posted.size() * sizeof(PostedCollective));
  }
  return posted;
}

std::vector<int> others_of_host(const std::vector<PlaceOfRank>& places, int own) {
  const PlaceOfRank& here = places[static_cast<size_t>(own)];
  std::vector<int> others;
  for (int rank = 0; rank < static_cast<int>(places.size()); ++rank) {
    const PlaceOfRank& place = places[static_cast<size_t>(rank)];
    if (rank != own && place.node == here.node && place.host == here.host) others.push_back(rank);
  }
  return others;
}

}  // namespace

StoreRelay::StoreRelay(Parts parts)
    : parts_(std::move(parts)),
      processes_(control(), others_of_host(parts_.places, parts_.rank)),
      peers_(parts_.places.size()),
      ended_(parts_.places.size()) {
  for (int rank = 0; rank < size(); ++rank) {
    alive_.push_back(fmt::format("alive/{}", rank));
    peers_[static_cast<size_t>(rank)].heard = Clock::now();
    if (control().is_local(rank)) continue;
    others_.push_back(rank);
    others_alive_.push_back(alive_.back());
  }
  // The constructors of all peers wait for this first report.
  tell();
  wait_for_all();
  thread_ = std::thread([this] { run(); });
}

void StoreRelay::wait_for_all() {
  const auto deadline = Clock::now() + parts_.timeout;
  while (!parts_.store->wait(alive_, pause())) {
    tell_failure();
    if (failed(control().failure())) throw_first_failure(control(), {});
    if (Clock::now() < deadline) continue;
    throw CommError({.what = "not all ranks arrived",
                     .where = "start of the job",
                     .hint = "see what the other ranks print"});
  }
}

StoreRelay::~StoreRelay() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StoreRelay::wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_all();
}

void StoreRelay::share_posted() {
  {
    const std::lock_guard lock(mutex_);
    shares_ = true;
    ++wishes_;
  }
  changed_.notify_all();
}

std::optional<PostedCollective> StoreRelay::shared_by(int rank, uint64_t sequence) {
  // By its last report, the rank has not issued the collective yet.
  if (control().last_posted(rank, order_of(sequence)).load() < sequence) return std::nullopt;
  const auto deadline = Clock::now() + kAnswerWithin;
  std::unique_lock lock(mutex_);
  while (Clock::now() < deadline) {  // the rank may be about to share the record
    // The rank may have answered before it posted the record, so it is asked again.
    posted_by_.erase(rank);
    asked_ = rank;
    changed_.notify_all();
    changed_.wait_for(lock, kAskAgain, [&] { return posted_by_.contains(rank); });
    for (const PostedCollective& posted : posted_in(posted_by_[rank])) {
      if (posted.record.sequence == sequence) return posted;
    }
  }
  return std::nullopt;
}

milliseconds StoreRelay::pause() const {
  return std::max<milliseconds>(kPause, size() * kPauseOfRank);
}

void StoreRelay::run() {
  try {
    run_until_end();
    if (parts_.server == parts_.rank) linger();
  } catch (const std::exception& error) {
    // The end of the store is no failure if this rank has finished, or if the rank that serves the
    // store has finished.
    const auto has_finished = [this](int rank) {
      return control().status(rank).state.load() != RankState::kPresent;
    };
    if (has_finished(parts_.rank) || (parts_.server && has_finished(*parts_.server))) return;
    // The text of a CommError also has a place and a hint, which the failure has already.
    const auto* const known = dynamic_cast<const Error*>(&error);
    fail(failure_of_lost_store(known != nullptr ? known->text().cause : error.what()));
  }
}

Failure StoreRelay::failure_of_lost_store(std::string_view cause) const {
  if (parts_.server) {
    const RankState state = control().status(*parts_.server).state.load();
    if (state == RankState::kFinished) {
      return failure_of_end(control(), *parts_.server, PeerEnd::kFinished);
    }
    if (state == RankState::kEnded) {
      return failure_of_end(control(), *parts_.server, PeerEnd::kReported);
    }
  }
  return {
      .rank = parts_.server.value_or(-1),
      .code = ExitCode::kPeerFailed,
      .text = {.what = parts_.server
                           ? fmt::format("the connection to the ranks' store on rank {} is lost",
                                         *parts_.server)
                           : "the connection to the launcher's store is lost",
               .cause = std::string(cause),
               .hint = "see what that rank or the launcher printed, then restart the job"}};
}

void StoreRelay::run_until_end() {
  std::unique_lock lock(mutex_);
  for (bool ends = false; !ends;) {
    changed_.wait_for(lock, pause(), [this] { return ends_ || is_woken_ || asked_ || shares_; });
    is_woken_ = false;
    // turn() runs once more after ends_ is set, and then reports the end of this rank.
    ends = ends_;
    lock.unlock();
    turn();
    lock.lock();
  }
}

// Serves the store until the other ranks have left. After a failure it continues for a few report
// intervals, so that all ranks can read the failure.
void StoreRelay::linger() {
  const auto begin = Clock::now();
  const auto is_over = [&] {
    const auto at_most = failed(control().failure()) ? 8 * pause() : parts_.timeout;
    return all_others_left() || Clock::now() - begin > at_most;
  };
  while (!is_over()) {
    std::this_thread::sleep_for(pause() / 10);
    turn();
  }
}

bool StoreRelay::all_others_left() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != parts_.rank && !is_reported(rank) &&
        control().status(rank).state.load() == RankState::kPresent) {
      return false;
    }
  }
  return true;
}

void StoreRelay::turn() {
  tell_failure();
  tell();
  hear();
  see_processes();
  differs_from_ ? explain() : compare();
  answer();
}

void StoreRelay::tell() {
  const bool finished = control().status(parts_.rank).state.load() != RankState::kPresent;
  std::unique_lock lock(mutex_);
  const uint64_t wishes = wishes_;
  lock.unlock();
  // The report contains beats_, the state and wishes_, then the last place and the hash of each
  // sequence. beats_ makes each report different from the previous one.
  std::string text = fmt::format("{} {} {}", ++beats_, finished ? "finished" : "present", wishes);
  for (int order = 0; order < kOrders; ++order) {
    const PostedCollectives& own = control().posted(parts_.rank, order);
    const uint64_t last = own.last.load();
    text += fmt::format(" {} {}", last, find_history(own, last).value_or(0));
  }
  parts_.store->set(alive_[static_cast<size_t>(parts_.rank)], text);
}

void StoreRelay::tell_failure() {
  if (failure_is_told_) return;
  if (const auto failure = first_failure(control().failure())) {
    // set_once keeps a failure that another host has stored before.
    parts_.store->set_once(kFailureKey, text_of(*failure));
    failure_is_told_ = true;
  } else if (parts_.store->has(kFailureKey)) {
    fail(failure_of(parts_.store->get({kFailureKey}).front()));
    failure_is_told_ = true;
  }
}

void StoreRelay::hear_from(int rank, const std::string& said) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.said = said;
  peer.heard = Clock::now();
  const std::vector<std::string> words = parts_of(said, ' ', 3 + 2 * kOrders);
  for (int order = 0; order < kOrders; ++order) {
    const size_t at = 3 + 2 * static_cast<size_t>(order);
    const auto last = number_in<uint64_t>(words[at]);
    peer.last[static_cast<size_t>(order)] = last;
    auto& known = control().last_posted(rank, order);
    for (uint64_t before = known; before < last && !known.compare_exchange_weak(before, last);) {
    }
    peer.history[static_cast<size_t>(order)] = number_in<uint64_t>(words[at + 1]);
  }
  // The places come first: a rank that finished after a collective must not seem to lack it.
  if (words[1] == "finished") control().status(rank).state.store(RankState::kFinished);
  const auto wishes = number_in<uint64_t>(words[2]);
  if (std::exchange(peer.wishes_heard, wishes) == wishes) return;
  const std::lock_guard lock(mutex_);
  shares_ = true;
}

// Returns true if this rank's posts differ from those of `rank`, up to the last place of `rank` in
// some sequence. If this rank is not in that sequence, it has no such place, and nothing is
// compared.
bool StoreRelay::differs(int rank) const {
  for (int order = 0; order < kOrders; ++order) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const uint64_t theirs = peer.history[static_cast<size_t>(order)];
    if (theirs == 0) continue;
    const auto history =
        find_history(control().posted(parts_.rank, order), peer.last[static_cast<size_t>(order)]);
    if (history && *history != theirs) return true;
  }
  return false;
}

void StoreRelay::compare() {
  for (const int rank : others_) {
    if (!differs(rank)) continue;
    differs_from_ = rank;
    differs_since_ = Clock::now();
    return share_posted();
  }
}

void StoreRelay::explain() {
  if (failed(control().failure())) return;
  const int other = *differs_from_;
  const auto own = [this](uint64_t sequence) {
    return find_posted(control().posted(parts_.rank, order_of(sequence)), sequence);
  };
  const bool is_shared = parts_.store->has(posted_key(other));
  const std::string records = is_shared ? parts_.store->get({posted_key(other)}).front() : "";
  std::optional<PostedCollective> first;
  // The earliest difference is the cause. Later differences follow from it.
  for (const PostedCollective& theirs : posted_in(records)) {
    const auto ours = own(theirs.record.sequence);
    const bool differs = ours && fingerprint_of(ours->record) != fingerprint_of(theirs.record);
    if (differs && (!first || theirs.record.sequence < first->record.sequence)) first = theirs;
  }
  if (!first) {  // the rank may be about to share the record that differs
    if (Clock::now() - differs_since_ < kAnswerWithin) return;
    // The rank never shared its records, or it no longer keeps the first record that differs.
    return fail(ranks_differ_somewhere(parts_.rank, other));
  }
  const uint64_t sequence = first->record.sequence;
  fail(ranks_disagree(parts_.rank, own(sequence).value_or(*first).record, other, first->record,
                      fmt::format("collective #{}", place_of(sequence))));
}

void StoreRelay::hear() {
  const std::vector<std::string> said = parts_.store->get(others_alive_);
  for (size_t i = 0; i < others_.size(); ++i) {
    const int rank = others_[i];
    Peer& peer = peers_[static_cast<size_t>(rank)];
    RankStatus& status = control().status(rank);
    const std::string& now = said[i];
    // A rank whose report has not changed counts as silent since its last change.
    if (now != peer.said) {
      hear_from(rank, now);
    } else if (status.state.load() == RankState::kPresent &&
               Clock::now() - peer.heard > parts_.timeout) {
      fail({.rank = rank,
            .code = ExitCode::kPeerFailed,
            .text = {.what = fmt::format("rank {} did not report for {}", rank,
                                         seconds_text(parts_.timeout)),
                     .where = fmt::format("host {}", parts_.places[static_cast<size_t>(rank)].host),
                     .cause = "its process is stopped, or its host or the network is down",
                     .hint = "check that host, then restart the job"}});
    }
  }
  // The reports of ended processes have the keys ends/1, ends/2, …, because any rank of a host may
  // write such a report.
  const int64_t ends = parts_.store->add(kEnds, 0);
  for (; ends_heard_ < ends; ++ends_heard_) {
    const std::string key = fmt::format("{}/{}", kEnds, ends_heard_ + 1);
    if (!parts_.store->wait({key}, kPause)) return;  // not written yet: read in a later turn
    const int rank = number_in<int>(parts_.store->get({key}).front());
    if (rank >= 0 && rank < size()) ended_[static_cast<size_t>(rank)] = true;
  }
}

// Reports processes of this host that have ended. Called after hear(), so that the last report of a
// process is known. For a process that has ended, hear() is called once more, because its report
// that it has finished may have arrived meanwhile.
void StoreRelay::see_processes() {
  for (int rank = 0; rank < size(); ++rank) {
    const auto is_known = [&] {
      return is_reported(rank) || control().status(rank).state.load() == RankState::kFinished;
    };
    if (is_known() || !processes_.ended(rank)) continue;
    hear();
    if (is_known()) continue;
    ended_[static_cast<size_t>(rank)] = true;
    const int64_t number = parts_.store->add(kEnds, 1);
    parts_.store->set(fmt::format("{}/{}", kEnds, number), std::to_string(rank));
  }
}

// Serves the requests of other threads, because only this thread may use the store.
void StoreRelay::answer() {
  std::unique_lock lock(mutex_);
  const bool shares = std::exchange(shares_, false);
  const std::optional<int> asked = std::exchange(asked_, std::nullopt);
  lock.unlock();
  if (shares) {
    std::string records;
    for (int order = 0; order < kOrders; ++order) {
      const PostedCollectives& own = control().posted(parts_.rank, order);
      const uint64_t last = own.last.load();
      // Shares all records that are still kept, also that of place 0 (creation of a part).
      for (uint64_t back = 0; back < PostedCollectives::kKept && back <= place_of(last); ++back) {
        const auto posted = find_posted(own, last - back);
        if (posted) records.append(reinterpret_cast<const char*>(&*posted), sizeof *posted);
      }
    }
    parts_.store->set(posted_key(parts_.rank), records);
  }
  if (!asked) return;
  if (!parts_.store->has(posted_key(*asked))) return;
  std::string found = parts_.store->get({posted_key(*asked)}).front();
  lock.lock();
  posted_by_[*asked] = std::move(found);
  lock.unlock();
  changed_.notify_all();
}

void StoreControlPlane::fail(const Failure& failure) noexcept {
  SegmentControlPlane::fail(failure);
  relay_->wake();
}

void StoreControlPlane::leave() noexcept {
  SegmentControlPlane::leave();
  relay_->wake();
}

std::optional<PostedCollective> StoreControlPlane::posted(int rank, uint64_t sequence) const {
  if (member_->control().is_local(rank)) return SegmentControlPlane::posted(rank, sequence);
  return relay_->shared_by(rank, sequence);
}

}  // namespace fsdp
