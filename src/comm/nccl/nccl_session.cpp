#include "comm/nccl/nccl_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/nccl/nccl_failures.h"
#include "fsdp/error.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// NCCL launches a collective about 30 us after ncclGroupEnd. The shortest sleep takes 90 us, and a
// yield on a busy host takes longer. So the polls of the first 200 us neither sleep nor yield.
// Every 50th of these polls checks for ranks that are gone.
constexpr int kQuestionsAtOnce = 1000;
constexpr int kQuestionsALook = 50;
// After the first kQuestionsAtOnce polls, each poll follows a pause. The pauses grow.
constexpr auto kShortestPause = microseconds(20);
constexpr auto kLongestPause = microseconds(1000);
// The warm-up and the first large collective get a time-out of first_use times the usual time-out.
constexpr int kFirstCollectives = 2;

// Returns NCCL's text about its last error, in addition to the error's name.
std::string last_error(const nccl::Library& library, nccl::Comm* comm) {
  const char* const text = library.get_last_error(comm);
  return text == nullptr ? "" : text;
}

}  // namespace

struct NcclSession::Member {
  struct UnderWay {
    CollectiveRecord record;
    Event begun, done;  // the stream has reached the collective; the collective is complete
    PeerWatch watch;    // begins when the stream has reached the collective
  };

  // A thread of NCCL writes this pointer. For a split, it does so before the call is complete.
  nccl::Comm* comm = nullptr;
  std::vector<int> ranks;  // in the job's numbers
  int rank;                // index of this rank in `ranks`
  std::string name;
  std::deque<UnderWay> under_way{};
  int ended = 0;  // number of completed collectives
};

NcclSession::NcclSession(Parts parts)
    : parts_(std::move(parts)),
      peers_(parts_.plane),
      own_stream_(parts_.device.make_stream({.name = "nccl"})),
      watch_(call_time(),
             [this](std::string_view call, const std::string& where) {
               const Failure failure =
                   call_did_not_return(parts_.plane.rank(), call, call_time(), where);
               parts_.plane.fail(failure);
               parts_.on_stuck(
                   with_stuck_call(parts_.plane.first_failure().value_or(failure), failure));
             }),
      watchdog_([this](const std::stop_token& ends) { watch(ends); }) {}

void NcclSession::require_working(const CallPlace& place) {
  if (!aborted_) {
    const std::optional<Failure> failure = parts_.plane.first_failure();
    if (!failure) return;
    give_up(*failure);
  }
  parts_.plane.throw_first_failure(place.text());
}

void NcclSession::fail(const Failure& failure, const CallPlace& place) {
  give_up(failure);
  parts_.plane.throw_first_failure(place.text());
}

// If `result` is an error, fails the job, because other ranks would wait for this collective.
void NcclSession::check(const char* name, nccl::Result result, nccl::Comm* comm,
                        const CallPlace& place) {
  if (result == nccl::Result::kSuccess || result == nccl::Result::kInProgress) return;
  fail(call_failed(parts_.plane.rank(), name, parts_.library.get_error_string(result),
                   last_error(parts_.library, comm), place.text()),
       place);
}

void NcclSession::finish_progress(Calls& calls, Member& member, const CallPlace& place) {
  const milliseconds time = time_for(member);
  PeerWatch watch(time);
  watch.begin();
  auto pause = kShortestPause;
  for (int64_t question = 1;; ++question) {
    nccl::Result state = nccl::Result::kSuccess;
    calls.next("ncclCommGetAsyncError");
    const nccl::Result asked = parts_.library.comm_get_async_error(member.comm, &state);
    calls.next({});  // the pause below is not a call
    check("ncclCommGetAsyncError", asked, member.comm, place);
    check("a call that was in progress", state, member.comm, place);
    if (state == nccl::Result::kSuccess) return;
    const bool asks_at_once = question < kQuestionsAtOnce;
    if (!asks_at_once || question % kQuestionsALook == 0) {
      require_working(place);
      if (const auto gone = peers_.gone(member.ranks, place, watch)) fail(*gone, place);
      if (watch.is_over()) fail(is_late(peers_, member.name, member.ranks, place, time), place);
    }
    if (asks_at_once) continue;
    std::this_thread::sleep_for(std::exchange(pause, std::min(2 * pause, kLongestPause)));
  }
}

milliseconds NcclSession::time_for(const Member& member) const {
  return member.ended < kFirstCollectives ? parts_.first_use * parts_.timeout : parts_.timeout;
}

nccl::UniqueId NcclSession::make_unique_id() {
  const CallPlace place("start of the job");
  const std::lock_guard lock(mutex_);
  nccl::UniqueId id{};
  Calls calls(watch_, place);
  calls.next("ncclGetUniqueId");
  check("ncclGetUniqueId", parts_.library.get_unique_id(&id), nullptr, place);
  return id;
}

NcclSession::MemberPtr NcclSession::add(std::vector<int> ranks, int rank, std::string name) {
  auto member = std::make_shared<Member>(
      Member{.ranks = std::move(ranks), .rank = rank, .name = std::move(name)});
  members_.push_back(member);
  return member;
}

NcclSession::MemberPtr NcclSession::join(const nccl::UniqueId& id, std::vector<int> ranks, int rank,
                                         std::string name) {
  const std::string where = fmt::format("NCCL communicator '{}'", name);
  const CallPlace place(where);
  const std::lock_guard lock(mutex_);
  require_working(place);
  parts_.device.make_current();  // NCCL uses the thread's current device
  nccl::Config config{.blocking = 0};
  const auto size = static_cast<int>(ranks.size());
  MemberPtr member = add(std::move(ranks), rank, std::move(name));
  Calls calls(watch_, place);
  calls.next("ncclCommInitRankConfig");
  const nccl::Result result =
      parts_.library.comm_init_rank_config(&member->comm, size, id, rank, &config);
  calls.next({});
  check("ncclCommInitRankConfig", result, member->comm, place);
  finish_progress(calls, *member, place);
  return member;
}

// ncclCommSplit is non-blocking: the child is valid once parent and child report success.
NcclSession::MemberPtr NcclSession::split(Member& parent, Split split) {
  const std::string where = fmt::format("NCCL communicator '{}' of '{}'", split.name, parent.name);
  const CallPlace place(where);
  const std::lock_guard lock(mutex_);
  require_working(place);
  parts_.device.make_current();
  nccl::Config config{.blocking = 0};
  if (split.by_copy_engines) {
    config.size = sizeof(nccl::Config);
    config.version = nccl::kConfigVersion;
    config.cta_policy = nccl::kCtaPolicyZero;
  }
  MemberPtr member = add(std::move(split.ranks), split.rank, split.name + " of " + parent.name);
  Calls calls(watch_, place);
  calls.next("ncclCommSplit");
  const nccl::Result result =
      parts_.library.comm_split(parent.comm, split.color, split.key, &member->comm, &config);
  calls.next({});
  check("ncclCommSplit", result, parent.comm, place);
  finish_progress(calls, parent, place);
  finish_progress(calls, *member, place);
  return member;
}

void NcclSession::leave(const MemberPtr& member) noexcept {
  try {
    const std::string where = fmt::format("end of NCCL communicator '{}'", member->name);
    const CallPlace place(where);
    const std::lock_guard lock(mutex_);
    Calls calls(watch_, place);
    end(calls, member, place);
    members_.remove(member);
  } catch (const std::exception&) {  // memory is short, or the mutex cannot be locked
  }
}

void NcclSession::end(Calls& calls, const MemberPtr& member, const CallPlace& place) {
  if (finalize(calls, *member)) {
    // This call has no time limit. It returns when all live ranks of this host have finalized their
    // communicators. One of them may still save a checkpoint.
    parts_.library.comm_destroy(member->comm);
    return;
  }
  const auto is_under_way = [&](const MemberPtr& other) {
    return other != member && !other->under_way.empty() && !other->under_way.back().done.reached();
  };
  if (const auto failure = parts_.plane.first_failure()) {
    give_up(*failure);
  } else if (std::ranges::any_of(members_, is_under_way)) {
    // The abort of this communicator alone could wait for the collectives of the others.
    give_up(failure_of_abort(parts_.plane.rank(), fmt::format("the {} failed", place.text())));
  } else {
    calls.next("ncclCommAbort");
    parts_.library.comm_abort(member->comm);
  }
}

// Returns true if the communicator was finalized. The communicator's work is done, so an error does
// not fail the job.
bool NcclSession::finalize(Calls& calls, const Member& member) {
  if (parts_.plane.first_failure()) return false;  // then collectives in flight may never end
  const auto is_gone = [this](int peer) {
    const auto end = parts_.plane.end_of(peer);
    return end && *end != PeerEnd::kFinished;
  };
  const auto deadline = Clock::now() + parts_.timeout;
  parts_.device.make_current();
  calls.next("ncclCommFinalize");
  nccl::Result state = parts_.library.comm_finalize(member.comm);
  for (auto pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (state != nccl::Result::kSuccess && state != nccl::Result::kInProgress) return false;
    calls.next("ncclCommGetAsyncError");
    const nccl::Result asked = parts_.library.comm_get_async_error(member.comm, &state);
    calls.next({});
    if (asked != nccl::Result::kSuccess) return false;
    if (state == nccl::Result::kSuccess) return true;
    if (Clock::now() > deadline || parts_.plane.first_failure() ||
        std::ranges::any_of(member.ranks, is_gone)) {
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
}

void NcclSession::issue(Member& member, const CollectiveRecord& record, Stream& stream,
                        const Call& make_calls) {
  const CallPlace place(record);
  const std::lock_guard lock(mutex_);
  require_working(place);
  if (const auto difference = peers_.post(member.name, member.ranks, record)) {
    fail(*difference, place);
  }
  parts_.device.make_current();
  // Each collective has new events, because the events of collectives in flight are still needed.
  Member::UnderWay now{.record = record,
                       .begun = Event(parts_.device),
                       .done = Event(parts_.device),
                       .watch = PeerWatch(parts_.timeout)};
  stream.record(now.begun);  // the watchdog's time begins when the stream reaches this event
  Calls calls(watch_, place);
  calls.next("ncclGroupStart");
  check("ncclGroupStart", parts_.library.group_start(), member.comm, place);
  calls.next("a call of the group");
  const nccl::Result in_group = make_calls(parts_.library, member.comm, stream.native());
  calls.next("ncclGroupEnd");
  const nccl::Result at_end = parts_.library.group_end();  // called even after an error
  calls.next({});
  check("a call of the group", in_group, member.comm, place);
  check("ncclGroupEnd", at_end, member.comm, place);
  finish_progress(calls, member, place);
  stream.record(now.done);  // [Note: events after the launch]
  member.under_way.push_back(std::move(now));
}

nccl::Result NcclSession::call(const char* name, const CallPlace& place,
                               const std::function<nccl::Result(const nccl::Library&)>& make) {
  const std::lock_guard lock(mutex_);
  require_working(place);
  parts_.device.make_current();
  Calls calls(watch_, place);
  calls.next(name);
  return make(parts_.library);
}

void NcclSession::call_over(Member& member, const char* name, const CallPlace& place,
                            const CallOver& make) {
  const std::lock_guard lock(mutex_);
  require_working(place);
  parts_.device.make_current();
  Calls calls(watch_, place);
  calls.next(name);
  const nccl::Result result = make(parts_.library, member.comm);
  calls.next({});
  check(name, result, member.comm, place);
  finish_progress(calls, member, place);
}

void NcclSession::call_at_end(const Member* member, const char* name,
                              const CallOver& make) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (aborted_ && member != nullptr) return;
    parts_.device.make_current();
    Calls calls(watch_, CallPlace("release of NCCL's memory"));
    calls.next(name);
    make(parts_.library, member == nullptr ? nullptr : member->comm);
  } catch (const std::exception&) {  // the device is lost, or the mutex cannot be locked
  }
}

void NcclSession::watch(const std::stop_token& ends) {
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, ends, parts_.looks_every, [&] { return ends.stop_requested(); })) {
    if (!aborted_) look();
  }
}

void NcclSession::look() {
  const CallPlace place("watch over NCCL's collectives");
  Calls calls(watch_, place);
  std::optional<Failure> failure = parts_.plane.first_failure();
  try {
    calls.next("cudaSetDevice");
    parts_.device.make_current();
    for (const MemberPtr& member : members_) {
      if (!failure) failure = look_at(calls, *member);
    }
  } catch (const Error& error) {  // a device error
    failure = failure_of_abort(parts_.plane.rank(), error.what());
  }
  if (failure) give_up(*failure);
}

std::optional<Failure> NcclSession::look_at(Calls& calls, Member& member) {
  calls.next("cudaEventQuery");
  while (!member.under_way.empty() && member.under_way.front().done.reached()) {
    member.under_way.pop_front();
    ++member.ended;
  }
  if (member.under_way.empty()) return std::nullopt;
  Member::UnderWay& oldest = member.under_way.front();
  if (!oldest.watch.has_begun() && oldest.begun.reached()) oldest.watch.begin();
  nccl::Result state = nccl::Result::kSuccess;
  calls.next("ncclCommGetAsyncError");
  const nccl::Result asked = parts_.library.comm_get_async_error(member.comm, &state);
  calls.next({});
  const CallPlace place(oldest.record);
  if (asked != nccl::Result::kSuccess) {
    return call_failed(parts_.plane.rank(), "ncclCommGetAsyncError",
                       parts_.library.get_error_string(asked),
                       last_error(parts_.library, member.comm), place.text());
  }
  if (state != nccl::Result::kSuccess && state != nccl::Result::kInProgress) {
    return call_failed(parts_.plane.rank(), "a collective", parts_.library.get_error_string(state),
                       last_error(parts_.library, member.comm), place.text());
  }
  if (auto gone = peers_.gone(member.ranks, place, oldest.watch)) return gone;
  if (!oldest.watch.has_begun()) return std::nullopt;
  if (oldest.watch.becomes_slow()) {
    parts_.plane.share_posted();
    for (const int peer : peers_.behind(member.ranks, oldest.record.sequence)) {
      parts_.plane.report_slow(
          {.rank = peer, .waited = oldest.watch.waited(), .collective = place.text()});
    }
  }
  const milliseconds within = time_for(member);
  if (oldest.watch.waited() < within) return std::nullopt;
  return is_late(peers_, member.name, member.ranks, place, within);
}

// Aborts parents before their children, because an abort waits for calls in progress. All aborts
// form one group, in which all kernels quit before NCCL waits. A single abort would wait for its
// communicator's streams, and these may wait for another communicator.
void NcclSession::give_up(const Failure& failure) noexcept {
  parts_.plane.fail(failure);  // the plane keeps only the job's first failure
  if (std::exchange(aborted_, true)) return;
  try {
    parts_.plane.throw_first_failure({});
  } catch (...) {
    parts_.device.fail_waits(std::current_exception());
  }
  Calls calls(watch_, CallPlace("abort of NCCL's communicators"));
  calls.next("ncclGroupStart");
  const bool in_group = parts_.library.group_start() == nccl::Result::kSuccess;
  for (const MemberPtr& member : members_) {
    if (member->comm == nullptr) continue;  // never created
    calls.next("ncclCommAbort");
    parts_.library.comm_abort(member->comm);
  }
  if (!in_group) return;
  calls.next("ncclGroupEnd");
  parts_.library.group_end();
}

}  // namespace fsdp
