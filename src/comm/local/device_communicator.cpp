#include "comm/local/device_communicator.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "comm/collective_checks.h"
#include "comm/cpu/split.h"
#include "comm/sent.h"
#include "kernels/cast_pack.h"
#include "kernels/reduce.h"
#include "runtime/device.h"

namespace fsdp {

class DeviceMeeting {
 public:
  // One rank's side. The rank writes it before a barrier of the host threads; its peers read it
  // after that barrier and before the next.
  struct Side {
    explicit Side(const Device& device) : ready(device), reduced(device), read(device) {}
    std::vector<CollectivePart> parts;
    Event ready;    // its input is ready, its output may be written
    Event reduced;  // its share of an all_reduce is written
    Event read;     // it has read its peers' input
    SplitWish wish{};
    std::shared_ptr<DeviceMeeting> split;  // the new group's, if it is its first rank
  };

  DeviceMeeting(int size, const Device& device) : sides_(size, Side(device)) {}
  Side& side(int rank) { return sides_[rank]; }

  // Lets `stream` wait for this event of every rank.
  void wait_for_all(Stream& stream, const Event Side::*event) const {
    for (const Side& side : sides_) stream.wait(side.*event);
  }

 private:
  std::vector<Side> sides_;
};

namespace {

// Returns the contiguous run that begins at a rank's element `begin`, of at most `numel` elements.
SendRun together(const CollectivePart& part, int64_t begin, int64_t numel) {
  if (part.runs.empty()) {
    return {static_cast<const std::byte*>(part.send) + begin * size_of(part.dtype), numel};
  }
  for (const SendRun& run : part.runs) {
    if (begin < run.numel) {
      return {static_cast<const std::byte*>(run.data) + begin * size_of(part.dtype),
              std::min(numel, run.numel - begin)};
    }
    begin -= run.numel;
  }
  return {};
}

std::byte* received(const CollectivePart& part, int64_t element) {
  return static_cast<std::byte*>(part.recv) + element * size_of(part.dtype);
}

// Copies of one launch. Data that is in place is left out.
class Copies {
 public:
  void add(const CollectivePart& from, int64_t begin, int64_t numel, std::byte* to) {
    for (int64_t done = 0; done < numel;) {
      const SendRun run = together(from, begin + done, numel - done);
      add(run.data, to + done * size_of(from.dtype), run.numel, from.dtype);
      done += run.numel;
    }
  }
  void add(const void* from, void* to, int64_t numel, DType dtype) {
    if (numel == 0 || from == to) return;
    runs_.push_back({from, to, numel, dtype, dtype});
  }
  void issue(Stream& stream) const {
    if (!runs_.empty()) kernels::cast_pack(stream, runs_);
  }

 private:
  std::vector<kernels::CastRun> runs_;
};

// Reductions of one launch, over all ranks' sources.
class Reductions {
 public:
  void add(std::vector<const void*> sources, std::byte* out, int64_t numel, DType dtype) {
    sources_.push_back(std::move(sources));
    runs_.push_back({.sources = sources_.back(), .out = out, .numel = numel, .dtype = dtype});
  }
  void issue(Stream& stream, ReduceOp op) const {
    if (!runs_.empty()) kernels::reduce(stream, runs_, op);
  }

 private:
  std::deque<std::vector<const void*>> sources_;  // by run; in a deque, as runs_ points into it
  std::vector<kernels::ReduceRun> runs_;
};

}  // namespace

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<const JobMember> member, RankGroup group,
                                       std::shared_ptr<DeviceMeeting> meeting, const Device& device)
    : member_(member),
      barrier_(std::move(member), std::move(group)),
      meeting_(std::move(meeting)),
      device_(device) {}

std::shared_ptr<DeviceMeeting> DeviceCommunicator::make_meeting(int size, const Device& device) {
  return std::make_shared<DeviceMeeting>(size, device);
}

Buffer DeviceCommunicator::allocate(int64_t bytes) {
  return device_.allocate(bytes, MemoryKind::kDevice);
}

void DeviceCommunicator::abort(std::string_view cause) noexcept {
  member_->fail(failure_of_abort(member_->rank(), cause));
}

void DeviceCommunicator::issue(const Collective& collective, Stream& stream) {
  require_valid(collective, size());
  const CollectiveRecord record = make_record(collective);
  const std::span<const CollectivePart> parts = collective.parts;
  if (size() == 1) {
    if (member_->has_failed()) member_->throw_failure(describe(record));
    // One rank needs no peer, and no copy of data that is in place.
    Copies copies;
    for (const CollectivePart& part : parts) copies.add(part, 0, part.numel, received(part, 0));
    return copies.issue(stream);
  }
  try {
    meet(parts, record, stream);
  } catch (const DeviceError& error) {
    // The caller frees memory that its peers' kernels read, or are about to read. So the others
    // learn of the failure first, their host threads stop issuing, and the device ends its work.
    ErrorText text = error.text();
    text.hint.clear();
    Failure failure = failure_of_abort(member_->rank(), DeviceError(std::move(text)).what());
    failure.text.where = describe(record);
    member_->fail(failure);
    barrier_.wait_for_readers();
    device_.drain();
    throw;
  }
}

void DeviceCommunicator::meet(std::span<const CollectivePart> parts, const CollectiveRecord& record,
                              Stream& stream) {
  DeviceMeeting::Side& mine = meeting_->side(rank());
  mine.parts.assign(parts.begin(), parts.end());
  // The event follows the work that wrote the input, and precedes any wait of a peer.
  stream.record(mine.ready);
  barrier_.open(record);
  barrier_.arrive_and_wait();
  barrier_.compare();
  {
    // This guards peers' lists of parts, which this thread reads; events order the kernels' reads.
    const GroupBarrier::Reading reading(barrier_);
    meeting_->wait_for_all(stream, &DeviceMeeting::Side::ready);
    move(record, stream);
  }
  if (record.operation == Operation::kAllReduce) {
    // Peers copy the shares, so their streams wait for this one's reduction.
    stream.record(mine.reduced);
    barrier_.arrive_and_wait();
    const GroupBarrier::Reading reading(barrier_);
    meeting_->wait_for_all(stream, &DeviceMeeting::Side::reduced);
    spread_shares(stream);
  }
  // Later work of this stream may overwrite memory that peers read, so it waits for their reads.
  stream.record(mine.read);
  barrier_.arrive_and_wait();
  meeting_->wait_for_all(stream, &DeviceMeeting::Side::read);
}

// [Note: in place] in cpu_communicator.cpp holds here, too: no rank writes memory that a peer reads
// before the next barrier of the host threads.
void DeviceCommunicator::move(const CollectiveRecord& record, Stream& stream) const {
  const std::vector<CollectivePart>& mine = meeting_->side(rank()).parts;
  Copies copies;
  Reductions reductions;
  // Reduces elements [begin, begin + numel) of each rank's input of part `index`, in runs that are
  // contiguous on all ranks.
  const auto reduce = [&](size_t index, int64_t begin, int64_t numel, std::byte* out) {
    std::vector<const void*> sources(size());
    for (int64_t done = 0; done < numel;) {
      // A run has to be contiguous on all ranks, so the shortest one ends it.
      int64_t count = numel - done;
      for (int peer = 0; peer < size(); ++peer) {
        const SendRun run = together(meeting_->side(peer).parts[index], begin + done, count);
        sources[peer] = run.data;
        count = run.numel;
      }
      reductions.add(sources, out + done * size_of(mine[index].dtype), count, mine[index].dtype);
      done += count;
    }
  };
  for (size_t i = 0; i < mine.size(); ++i) {
    const CollectivePart& part = mine[i];
    switch (record.operation) {
      case Operation::kAllGather:
        for (int peer = 0; peer < size(); ++peer) {
          copies.add(meeting_->side(peer).parts[i], 0, part.numel,
                     received(part, peer * part.numel));
        }
        break;
      case Operation::kBroadcast:
        copies.add(meeting_->side(record.root).parts[i], 0, part.numel, received(part, 0));
        break;
      case Operation::kReduceScatter:
        reduce(i, rank() * part.numel, part.numel, received(part, 0));
        break;
      case Operation::kAllReduce: {
        const Share share = share_of(rank(), size(), part.numel);
        reduce(i, share.begin, share.end - share.begin, received(part, share.begin));
        break;
      }
      case Operation::kBarrier:
        break;
    }
  }
  copies.issue(stream);
  reductions.issue(stream, record.reduce_op);
}

void DeviceCommunicator::spread_shares(Stream& stream) const {
  Copies copies;
  const std::vector<CollectivePart>& mine = meeting_->side(rank()).parts;
  for (size_t i = 0; i < mine.size(); ++i) {
    for (int peer = 0; peer < size(); ++peer) {
      const Share share = share_of(peer, size(), mine[i].numel);
      // The peer's output is the source: its reduction has written its share there.
      copies.add(received(meeting_->side(peer).parts[i], share.begin),
                 received(mine[i], share.begin), share.end - share.begin, mine[i].dtype);
    }
  }
  copies.issue(stream);
}

std::unique_ptr<Communicator> DeviceCommunicator::split(int color, int key) {
  // Host memory carries the wishes: the host needs the values, and a kernel would be slower.
  const auto exchange = [&](const SplitWish& wish) {
    meeting_->side(rank()).wish = wish;
    barrier_.open(make_record({.operation = Operation::kAllGather, .tag = {.label = "split"}}));
    barrier_.arrive_and_wait();
    barrier_.compare();
    std::vector<SplitWish> wishes;
    for (int peer = 0; peer < size(); ++peer) wishes.push_back(meeting_->side(peer).wish);
    barrier_.arrive_and_wait();
    return wishes;
  };
  RankGroup group = agree_on_split(*member_, barrier_.group(), exchange, color, key);
  // The group's first rank makes the shared state; the others copy its pointer between two
  // barriers.
  if (group.rank == 0) meeting_->side(rank()).split = make_meeting(group.size(), device_);
  barrier_.open(make_record({.tag = {.label = "split"}}));
  barrier_.arrive_and_wait();
  const auto& ranks = barrier_.group().ranks;
  const auto first = std::ranges::find(ranks, group.ranks.front()) - ranks.begin();
  // The pointer's owner may overwrite it in a next split only after the barrier below.
  auto meeting = meeting_->side(static_cast<int>(first)).split;
  barrier_.arrive_and_wait();
  return std::make_unique<DeviceCommunicator>(member_, std::move(group), std::move(meeting),
                                              device_);
}

}  // namespace fsdp
