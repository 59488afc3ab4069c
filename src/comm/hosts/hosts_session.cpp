#include "comm/hosts/hosts_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "comm/job/collective_failures.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr auto kLookEvery = milliseconds(20);
// The time in which the control plane may learn why a connection broke, or which rank is missing.
// Reports of other hosts take about half a second.
constexpr auto kReasonWithin = milliseconds(2000);

// Returns a random number on which all ranks agree: the first that a rank stores.
uint64_t agreed_id(KeyValueStore& store) {
  std::random_device random;
  const uint64_t own = (uint64_t{random()} << 32) | random();
  return std::stoull(store.set_once("hosts/job", std::to_string(own)));
}

}  // namespace

HostsSession::HostsSession(Parts parts)
    : parts_(std::move(parts)),
      peers_(parts_.plane),
      job_id_(agreed_id(*parts_.store)),
      thread_([this](const std::stop_token& ends) { watch(ends); }) {}

bool HostsSession::share_memory(int rank, int other) const {
  if (rank == other || !parts_.make_inside) return rank == other;
  // Each host has the same number of neighbouring ranks (ranks_of_host).
  const int on_each = parts_.member->control().local().count;
  return rank / on_each == other / on_each;
}

std::shared_ptr<HostLinks> HostsSession::links_to(const std::vector<int>& ranks) {
  const std::lock_guard lock(connecting_);
  std::shared_ptr<HostLinks>& links = links_[ranks];
  if (!links) {
    const auto own = std::ranges::find(ranks, parts_.plane.rank()) - ranks.begin();
    links = parts_.transport->connect(
        *parts_.store,
        // A list of many ranks would be too long for a key.
        {.name = fmt::format("hosts/{}-{:x}", ranks.size(),
                             hash_of(fmt::format("{}", fmt::join(ranks, ",")))),
         .rank = static_cast<int>(own),
         .size = static_cast<int>(ranks.size())},
        parts_.timeout, [this, ranks, watch = PeerWatch(parts_.timeout)]() mutable {
          require_alive(ranks, watch);
        });
  }
  return links;
}

void HostsSession::require_alive(const std::vector<int>& ranks, PeerWatch& watch) const {
  constexpr std::string_view kPlace = "connection of the hosts";
  if (!watch.has_begun()) watch.begin();
  if (const auto gone = peers_.gone(ranks, kPlace, watch)) parts_.plane.fail(*gone);
  if (parts_.plane.first_failure()) parts_.plane.throw_first_failure(kPlace);
}

void HostsSession::post(const Place& place) {
  require_working(place);
  if (const auto difference = peers_.post(place.communicator, place.ranks, place.record)) {
    fail(*difference, place);
  }
}

void HostsSession::require_working(const Place& place) const {
  if (parts_.member->has_failed()) parts_.member->throw_failure(describe(place.record));
}

void HostsSession::fail(const Failure& failure, const Place& place) const {
  parts_.plane.fail(failure);  // the plane keeps only the job's first failure
  parts_.plane.throw_first_failure(describe(place.record));
}

void HostsSession::wait(const Place& place, std::span<const Message> messages) {
  require_working(place);
  auto& waits = parts_.member->control().status(parts_.plane.rank()).host_waits;
  const auto begin = [&] {
    const std::lock_guard lock(mutex_);
    waiting_.push_front({&place, messages, PeerWatch(parts_.timeout)});
    waiting_.front().watch.begin();
    ++waits;
    return waiting_.begin();
  };
  const auto end = [&](WaitingPtr waiting) {
    --waits;
    const std::lock_guard lock(mutex_);
    waiting_.erase(waiting);
  };
  const WaitingPtr waiting = begin();
  auto message = messages.begin();
  std::optional<std::string> lost;
  try {
    for (; message != messages.end(); ++message) message->transfer->wait();
  } catch (const CommError& error) {
    lost = error.text().cause;
  } catch (...) {
    end(waiting);  // the watching thread reads `place` and `messages`
    throw;
  }
  end(waiting);
  if (lost) throw_lost(place, message->peer, *lost);
  require_working(place);
}

void HostsSession::throw_lost(const Place& place, int peer, const std::string& cause) const {
  const auto deadline = Clock::now() + kReasonWithin;
  PeerWatch watch(parts_.timeout);
  watch.begin();
  while (Clock::now() < deadline) {
    require_working(place);
    if (const auto gone = peers_.gone(place.ranks, place.record, watch)) fail(*gone, place);
    std::this_thread::sleep_for(kLookEvery);
  }
  fail({.rank = peer,
        .code = ExitCode::kPeerFailed,
        .text = {.what = fmt::format("the connection to rank {} on host {} is lost", peer,
                                     parts_.hosts[static_cast<size_t>(peer)]),
                 .where = describe(place.record),
                 .cause = cause,
                 .hint = "see what that rank printed, and check its host and the network"}},
       place);
}

void HostsSession::watch(const std::stop_token& ends) {
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, ends, kLookEvery, [&] { return ends.stop_requested(); })) {
    for (Waiting& waiting : waiting_) look_at(waiting);
  }
}

void HostsSession::look_at(Waiting& waiting) {
  const Place& place = *waiting.place;
  std::optional<Failure> failure = parts_.plane.first_failure();
  if (!failure) failure = peers_.gone(place.ranks, place.record, waiting.watch);
  if (!failure && waiting.watch.becomes_slow()) {
    parts_.plane.share_posted();
    for (const int peer : peers_.behind(place.ranks, place.record.sequence)) {
      parts_.plane.report_slow(
          {.rank = peer, .waited = waiting.watch.waited(), .collective = describe(place.record)});
    }
  }
  if (!failure && waiting.watch.is_over()) {
    failure = peers_.late(place.communicator, place.ranks, place.record, parts_.timeout);
    if (failure && failure->rank >= 0 && !share_memory(failure->rank, parts_.plane.rank())) {
      failure->text.cause =
          fmt::format("its process is stopped or busy, or the network to host {} is down",
                      parts_.hosts[static_cast<size_t>(failure->rank)]);
      failure->text.hint =
          "check that host and the network; if it is only slow, raise MeshOptions::timeout";
    }
    if (!failure) {
      // All ranks have issued the collective. A rank that waits inside another host may still name
      // the rank that is missing there.
      if (waiting.watch.waited() < parts_.timeout + kReasonWithin) return;
      failure =
          Failure{.rank = -1,
                  .code = ExitCode::kPeerFailed,
                  .text = {.what = fmt::format("the hosts did not exchange their data within {}",
                                               seconds_text(parts_.timeout)),
                           .where = describe(place.record),
                           .cause = "the network between the hosts is down or too slow",
                           .hint = "check the network between the hosts; if it is only slow, raise "
                                   "MeshOptions::timeout"}};
    }
  }
  if (!failure) return;
  parts_.plane.fail(*failure);
  for (const Message& message : waiting.messages) message.transfer->cancel();
}

}  // namespace fsdp
