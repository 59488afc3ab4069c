#include "comm/hosts/hosts_communicator.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "comm/collective_checks.h"
#include "comm/cpu/split.h"
#include "comm/ranks_view.h"
#include "comm/ring_bytes.h"
#include "comm/sent.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp {
namespace {

using Pieces = HostReduction::Pieces;

// Returns the rank's place if the group has `step` consecutive ranks on each of its hosts. Empty
// otherwise.
std::optional<HostPlace> place_in(const RankGroup& group, int step, const HostsSession& session) {
  const std::vector<int>& ranks = group.ranks;
  if (group.size() % step != 0) return std::nullopt;
  for (int i = 0; i + 1 < group.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    const bool same = session.share_memory(ranks[at], ranks[at + 1]);
    const bool ends = (i + 1) % step == 0;
    if (same == ends) return std::nullopt;
    // The ranks of a host must follow one another.
    for (int other = (i / step + 1) * step; ends && other < group.size(); other += step) {
      const bool again = session.share_memory(ranks[at], ranks[static_cast<size_t>(other)]);
      if (again) return std::nullopt;
    }
  }
  return HostPlace{.hosts = group.size() / step,
                   .ranks_of_host = step,
                   .host = group.rank / step,
                   .number = group.rank % step};
}

}  // namespace

HostsCommunicator::HostsCommunicator(std::shared_ptr<HostsSession> session, RankGroup group)
    : session_(std::move(session)),
      group_(std::move(group)),
      name_(fmt::format("channel {}", group_.channel)) {
  const std::vector<int>& ranks = group_.ranks;
  const int own = ranks[static_cast<size_t>(group_.rank)];
  RankGroup here{.channel = group_.channel};
  for (const int rank : ranks) {
    if (rank == own) here.rank = here.size();
    if (session_->share_memory(own, rank)) here.ranks.push_back(rank);
  }
  const auto regular = place_in(group_, here.size(), *session_);
  place_ = regular.value_or(HostPlace{.hosts = group_.size(), .host = group_.rank});
  for (int host = 0; host < place_.hosts; ++host) {
    column_.push_back(ranks[static_cast<size_t>(place_.rank_on(host))]);
  }
  if (place_.ranks_of_host > 1) inside_ = session_->make_inside(std::move(here));
  if (place_.hosts > 1) links_ = session_->links_to(column_);
  reduction_ = std::make_unique<HostReduction>(place_, inside_.get());
}

RanksView HostsCommunicator::map_ranks(const void* mine, int64_t bytes) {
  return capabilities().maps_ranks ? inside_->map_ranks(mine, bytes) : RanksView();
}

Capabilities HostsCommunicator::capabilities() const {
  if (place_.hosts == 1 && inside_) return inside_->capabilities();
  return {.hosts = place_.hosts};
}

Buffer HostsCommunicator::allocate(int64_t bytes) {
  return inside_ ? inside_->allocate(bytes) : allocate_host(bytes);
}

void HostsCommunicator::abort(std::string_view cause) noexcept { session_->plane().abort(cause); }

std::unique_ptr<Communicator> HostsCommunicator::split(int color, int key) {
  const auto exchange = [this](const SplitWish& mine) { return exchange_wishes(*this, mine); };
  return std::make_unique<HostsCommunicator>(
      session_, agree_on_split(session_->member(), group_, exchange, color, key));
}

void HostsCommunicator::issue(const Collective& collective, Stream& stream) {
  require_valid(collective, size());
  const CollectiveRecord record = make_record(collective);
  session_->post(place_of(record));
  CpuStream& cpu = cpu_stream(stream);
  if (cpu.is_inline()) return execute(collective, record);
  // The stream runs the work later. By then the caller's span of parts may be invalid, so the parts
  // are copied. The lists of runs to which the parts point stay valid until the work is done.
  cpu.run([this, record, later = collective,
           kept = std::vector(collective.parts.begin(), collective.parts.end())]() mutable {
    later.parts = kept;
    execute(later, record);
  });
}

void HostsCommunicator::execute(const Collective& collective, const CollectiveRecord& record) {
  if (place_.hosts == 1) return issue_inside(collective, record);
  // A record that a barrier sends means that all ranks of the host have arrived.
  if (collective.operation == Operation::kBarrier) issue_inside(collective, record);
  HostExchange exchange(*session_, place_of(record), *links_, column_, place_.host, group_.channel,
                        ++count_);
  switch (collective.operation) {
    case Operation::kAllGather:
      gather(collective.parts, exchange);
      break;
    case Operation::kReduceScatter:
      reduction_->run(collective.parts, Pieces::kOfRanks, collective.reduce_op, exchange);
      break;
    case Operation::kAllReduce:
      reduce_all(collective.parts, collective.reduce_op, exchange);
      break;
    case Operation::kBroadcast:
      broadcast(collective.parts, collective.root, exchange);
      break;
    case Operation::kBarrier:
      break;
  }
  exchange.agree();
}

// Issues a collective of the ranks of this host. It has no place in the collective sequence,
// because post() has compared the collective to which it belongs.
void HostsCommunicator::issue_inside(Collective collective, const CollectiveRecord& record) {
  if (inside_) {
    collective.tag = {.label = record.label.data()};
    return inside_->issue(collective, cpu_device().compute_stream());
  }
  session_->require_working(place_of(record));
  for (const CollectivePart& part : collective.parts) copy_sent(part, 0, part.numel, part.recv);
}

void HostsCommunicator::gather(std::span<const CollectivePart> parts, HostExchange& exchange) {
  HostExchange::Messages sent;
  std::vector<HostExchange::Messages> arriving(static_cast<size_t>(place_.hosts));
  for (const CollectivePart& part : parts) {
    std::byte* const own = received(part, rank() * part.numel);
    const int64_t bytes = bytes_of(part, part.numel);
    const std::byte* data = sent_together(part, 0, part.numel);
    if (data == nullptr) {
      copy_sent(part, 0, part.numel, own);
      data = own;
    }
    for (int host = 0; host < place_.hosts; ++host) {
      if (host == place_.host) continue;
      exchange.receive(host, received(part, place_.rank_on(host) * part.numel), bytes,
                       arriving[static_cast<size_t>(host)]);
      exchange.send(host, data, bytes, sent);
    }
    if (data != own) copy_sent(part, 0, part.numel, own);  // while the data travel
  }
  // While data arrive from other hosts, the ranks of this host gather their own pieces.
  gather_inside(parts, place_.host, exchange.record());
  for (int host = 0; host < place_.hosts; ++host) {
    if (host == place_.host) continue;
    exchange.wait(arriving[static_cast<size_t>(host)]);
    gather_inside(parts, host, exchange.record());
  }
  exchange.wait(sent);
}

// Gathers, on this host, the pieces of the ranks of host `from`. Each rank has received one of
// them.
void HostsCommunicator::gather_inside(std::span<const CollectivePart> parts, int from,
                                      const CollectiveRecord& record) {
  if (!inside_) return;
  std::vector<CollectivePart> pieces;
  for (const CollectivePart& part : parts) {
    const int64_t first = int64_t{from} * place_.ranks_of_host * part.numel;
    pieces.push_back({.send = received(part, first + place_.number * part.numel),
                      .recv = received(part, first),
                      .numel = part.numel,
                      .dtype = part.dtype});
  }
  issue_inside({.operation = Operation::kAllGather, .parts = pieces}, record);
}

void HostsCommunicator::reduce_all(std::span<const CollectivePart> parts, ReduceOp op,
                                   HostExchange& exchange) {
  int64_t bytes = 0;
  for (const CollectivePart& part : parts) bytes += bytes_of(part, part.numel);
  // Small data take one exchange instead of two.
  if (bytes <= kWholeAllReduceBytes) return reduction_->run(parts, Pieces::kWhole, op, exchange);
  // Each part is divided into equal pieces for all ranks and a rest of fewer than size() elements.
  std::vector<CollectivePart> divided, gathered, rests;
  std::vector<std::vector<SendRun>> runs(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const CollectivePart& part = parts[i];
    const int64_t numel = part.numel / size();
    const int64_t rest = numel * size();
    CollectivePart pieces = part;
    pieces.numel = numel;
    pieces.recv = received(part, rank() * numel);
    divided.push_back(pieces);
    gathered.push_back(
        {.send = pieces.recv, .recv = part.recv, .numel = numel, .dtype = part.dtype});
    append_runs(part, rest, part.numel - rest, runs[i]);
    rests.push_back({.recv = received(part, rest),
                     .numel = part.numel - rest,
                     .dtype = part.dtype,
                     .runs = runs[i]});
  }
  reduction_->run(rests, Pieces::kWhole, op, exchange);
  reduction_->run(divided, Pieces::kOfRanks, op, exchange);
  gather(gathered, exchange);
}

void HostsCommunicator::broadcast(std::span<const CollectivePart> parts, int root,
                                  HostExchange& exchange) {
  const int from = root / place_.ranks_of_host;
  const int number = root % place_.ranks_of_host;
  HostExchange::Messages messages;
  std::vector<CollectivePart> pieces;
  for (const CollectivePart& part : parts) {
    if (rank() == root) copy_sent(part, 0, part.numel, part.recv);
    pieces.push_back(
        {.send = part.recv, .recv = part.recv, .numel = part.numel, .dtype = part.dtype});
    if (place_.number != number) continue;
    const int64_t bytes = bytes_of(part, part.numel);
    if (rank() != root) exchange.receive(from, part.recv, bytes, messages);
    for (int host = 0; host < place_.hosts; ++host) {
      if (rank() == root && host != from) exchange.send(host, part.recv, bytes, messages);
    }
  }
  exchange.wait(messages);
  if (inside_) {
    issue_inside({.operation = Operation::kBroadcast, .parts = pieces, .root = number},
                 exchange.record());
  }
}

}  // namespace fsdp
