#include "comm/hosts/host_exchange.h"

#include <fmt/format.h>

#include "comm/job/collective_failures.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

// Each communicator uses two tags: one for records and one for data.
constexpr uint32_t kTags = 2;

}  // namespace

HostExchange::HostExchange(HostsSession& session, const HostsSession::Place& place,
                           HostLinks& links, const std::vector<int>& column, int host, int channel,
                           uint64_t number)
    : session_(session),
      place_(place),
      links_(links),
      column_(column),
      host_(host),
      number_(number),
      tag_(static_cast<uint32_t>(channel) * kTags),
      own_{.job = session.job_id(),
           .posted = {.record = place.record, .communicator = hash_of(place.communicator)}},
      frames_by_host_(column.size()) {
  for (int other = 0; other < static_cast<int>(column_.size()); ++other) {
    if (other == host_) continue;
    begin(other, frames_, [&] {
      return links_.receive(other, tag_, &frames_by_host_[static_cast<size_t>(other)],
                            sizeof(Frame));
    });
    begin(other, frames_, [&] { return links_.send(other, tag_, &own_, sizeof(Frame)); });
  }
}

template <class Begin>
void HostExchange::begin(int other, Messages& messages, const Begin& begin) {
  const int peer = column_[static_cast<size_t>(other)];
  try {
    messages.push_back({peer, begin()});
  } catch (const CommError& error) {
    session_.throw_lost(place_, peer, error.text().cause);
  }
}

void HostExchange::agree() {
  if (has_agreed_) return;
  wait(frames_);
  // All ranks compare all records with that of the first host, so all find the same difference.
  frames_by_host_[static_cast<size_t>(host_)] = own_;
  for (size_t host = 0; host < column_.size(); ++host) {
    require_equal(frames_by_host_.front(), frames_by_host_[host], column_[host]);
  }
  has_agreed_ = true;
}

void HostExchange::require_equal(const Frame& first, const Frame& theirs, int rank) const {
  if (theirs.job != own_.job) {
    session_.fail(
        {.rank = rank,
         .code = ExitCode::kPeerFailed,
         .text = {.what = fmt::format("rank {} received data of another program",
                                      column_[static_cast<size_t>(host_)]),
                  .where = describe(place_.record),
                  .cause = fmt::format("another program uses the connection to rank {}", rank),
                  .hint = "run the job in a private network"}},
        place_);
  }
  if (mark_of(theirs.posted) == mark_of(first.posted)) return;
  session_.fail(ranks_disagree(column_.front(), first.posted.record, rank, theirs.posted.record,
                               fmt::format("collective {} of the communicator", number_)),
                place_);
}

void HostExchange::send(int other, const void* data, int64_t bytes, Messages& messages) {
  if (bytes == 0) return;
  agree();
  begin(other, messages, [&] { return links_.send(other, tag_ + 1, data, bytes); });
}

void HostExchange::receive(int other, void* data, int64_t bytes, Messages& messages) {
  if (bytes == 0) return;
  agree();
  begin(other, messages, [&] { return links_.receive(other, tag_ + 1, data, bytes); });
}

void HostExchange::wait(Messages& messages) {
  session_.wait(place_, messages);
  messages.clear();
}

}  // namespace fsdp
