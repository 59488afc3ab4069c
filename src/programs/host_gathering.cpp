#include "host_gathering.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "comm/job/process_end.h"
#include "comm/store/store_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

// Returns how likely it is that this end caused the ends of ranks on other hosts. Ranks that end
// because another rank failed have the code kPeerFailed.
int weight_of(const FailedStart& end) {
  if (end.code == 0) return 0;
  if (needs_change(end.code)) return 4;
  if (WIFSIGNALED(end.wait_status)) return 3;
  return end.code == static_cast<int>(ExitCode::kPeerFailed) ? 1 : 2;
}

}  // namespace

std::string text_of(const HostCall& call) {
  const FailedStart& end = call.end;
  return fmt::format("{} {} {} {} {} {} {:d}", call.id, call.beat, call.attempt, end.code, end.rank,
                     end.wait_status, end.out_of_memory);
}

HostCall host_call_of(const std::string& text) {
  const std::vector<std::string> words = parts_of(text, ' ', 7);
  return {.id = number_in<uint64_t>(words[0]),
          .beat = number_in<uint64_t>(words[1]),
          .attempt = number_in<int>(words[2]),
          .end = {.code = number_in<int>(words[3]),
                  .rank = number_in<int>(words[4]),
                  .wait_status = number_in<int>(words[5]),
                  .out_of_memory = number_in<int>(words[6]) != 0}};
}

void HostGathering::end_start(int attempt, std::vector<HostMember> members, Time now) {
  attempt_ = attempt;
  members_ = std::move(members);
  begin_ = now;
}

void HostGathering::hear(int host, const HostCall& call, Time now) {
  const auto [at, is_new] = heard_.try_emplace(host, Heard{call, now});
  if (is_new) return;
  const HostCall& before = at->second.call;
  if (before.id != call.id || before.beat != call.beat) at->second = {call, now};
}

const HostGathering::Heard* HostGathering::heard_of(int host) const {
  const auto found = heard_.find(host);
  return found == heard_.end() ? nullptr : &found->second;
}

bool HostGathering::has_reports(Time now) const {
  if (now - begin_ >= std::max<std::chrono::milliseconds>(kReportWithin, options_.wait))
    return true;
  return std::ranges::all_of(members_, [&](const HostMember& member) {
    const Heard* const heard = heard_of(member.host);
    if (member.host == 0) return true;
    // Another launcher of the host means that the one of that start has ended.
    return heard != nullptr && (heard->call.id != member.id || heard->call.attempt == attempt_);
  });
}

FailedStart HostGathering::cause(const FailedStart& own) const {
  FailedStart cause = own;
  for (const HostMember& member : members_) {
    const Heard* const heard = heard_of(member.host);
    if (heard == nullptr || heard->call.id != member.id || heard->call.attempt != attempt_)
      continue;
    if (weight_of(heard->call.end) > weight_of(cause)) cause = heard->call.end;
  }
  cause.step = own.step;
  cause.saved = own.saved;
  return cause;
}

HostGathering::State HostGathering::state(Time now, std::chrono::milliseconds pause) const {
  const auto waited = now - begin_;
  if (waited < pause) return State::kWaits;
  const auto hosts = std::ssize(waiting(now));
  if (hosts == options_.most) return State::kStarts;
  if (hosts >= options_.least && waited >= options_.wait) return State::kStarts;
  return waited < options_.give_up ? State::kWaits : State::kGivesUp;
}

std::vector<HostMember> HostGathering::waiting(Time now) const {
  std::vector<HostMember> hosts{{.host = 0}};
  for (const auto& [host, heard] : heard_) {
    if (now - heard.at < kSilent) hosts.push_back({.host = host, .id = heard.call.id});
  }
  return hosts;
}

}  // namespace fsdp
