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
  // The state of one rank. The rank writes it before a barrier of the host threads. The peers read
  // the state between that barrier and the next one.
  struct Side {
    explicit Side(const Device& device) : ready(device), reduced(device), read(device) {}
    std::vector<CollectivePart> parts;
    Event ready;    // the rank's input is ready, and its output may be written
    Event reduced;  // the rank has written its share of an all_reduce
    Event read;     // the rank has read its peers' input
    SplitWish wish{};
    std::shared_ptr<DeviceMeeting> split;  // set by the first rank of a new group, for this group
  };

  DeviceMeeting(int size, const Device& device) : sides_(size, Side(device)) {}
  Side& side(int rank) { return sides_[rank]; }

  // Makes `stream` wait for the event `event` of every rank.
  void wait_for_all(Stream& stream, const Event Side::*event) const {
    for (const Side& side : sides_) stream.wait(side.*event);
  }

 private:
  std::vector<Side> sides_;
};

namespace {

// Returns the contiguous run of at most `numel` elements that begins at element `begin` of a rank's
// input.
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

// The copies of one launch. Data that are in place are skipped.
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

// The reductions of one launch, each over the sources of all ranks.
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
  // The sources of each run. A deque, because runs_ points to its elements.
  std::deque<std::vector<const void*>> sources_;
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
    // A group of one rank needs no exchange. Data that are in place are not copied.
    Copies copies;
    for (const CollectivePart& part : parts) copies.add(part, 0, part.numel, received(part, 0));
    return copies.issue(stream);
  }
  try {
    meet(parts, record, stream);
  } catch (const DeviceError& error) {
    // After this error the caller will free memory that kernels of other ranks read or are about to
    // read. So the other ranks are notified first, their host threads stop issuing, and the device
    // finishes its work.
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
  // The event is recorded after the work that wrote the input and before any peer waits for it.
  stream.record(mine.ready);
  barrier_.open(record);
  barrier_.arrive_and_wait();
  barrier_.compare();
  {
    // This scope guards the peers' lists of parts, which this thread reads. Events order the reads
    // of kernels.
    const GroupBarrier::Reading reading(barrier_);
    meeting_->wait_for_all(stream, &DeviceMeeting::Side::ready);
    move(record, stream);
  }
  if (record.operation == Operation::kAllReduce) {
    // Peers copy the shares, so their streams wait for the reduction on this stream.
    stream.record(mine.reduced);
    barrier_.arrive_and_wait();
    const GroupBarrier::Reading reading(barrier_);
    meeting_->wait_for_all(stream, &DeviceMeeting::Side::reduced);
    spread_shares(stream);
  }
  // Later work of this stream may overwrite memory that peers read, so the stream waits for the
  // reads of the peers.
  stream.record(mine.read);
  barrier_.arrive_and_wait();
  meeting_->wait_for_all(stream, &DeviceMeeting::Side::read);
}

// [Note: in place] in cpu_communicator.cpp applies here as well: no rank writes memory that a peer
// reads before the next barrier of the host threads.
void DeviceCommunicator::move(const CollectiveRecord& record, Stream& stream) const {
  const std::vector<CollectivePart>& mine = meeting_->side(rank()).parts;
  Copies copies;
  Reductions reductions;
  // Reduces elements [begin, begin + numel) of each rank's input of part `index`. Each reduction of
  // the launch has inputs that are contiguous on all ranks.
  const auto reduce = [&](size_t index, int64_t begin, int64_t numel, std::byte* out) {
    std::vector<const void*> sources(size());
    for (int64_t done = 0; done < numel;) {
      // The input of a reduction must be contiguous on all ranks, so the shortest contiguous run
      // limits its length.
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
      // The source is the peer's output, because the peer's reduction has written its share there.
      copies.add(received(meeting_->side(peer).parts[i], share.begin),
                 received(mine[i], share.begin), share.end - share.begin, mine[i].dtype);
    }
  }
  copies.issue(stream);
}

std::unique_ptr<Communicator> DeviceCommunicator::split(int color, int key) {
  // The ranks exchange their split arguments in host memory, because the host needs the values, and
  // a kernel would be slower.
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
  // The group's first rank makes the shared state. The other ranks copy its pointer between two
  // barriers.
  if (group.rank == 0) meeting_->side(rank()).split = make_meeting(group.size(), device_);
  barrier_.open(make_record({.tag = {.label = "split"}}));
  barrier_.arrive_and_wait();
  const auto& ranks = barrier_.group().ranks;
  const auto first = std::ranges::find(ranks, group.ranks.front()) - ranks.begin();
  // The first rank may overwrite the pointer in its next split, but only after the barrier below.
  auto meeting = meeting_->side(static_cast<int>(first)).split;
  barrier_.arrive_and_wait();
  return std::make_unique<DeviceCommunicator>(member_, std::move(group), std::move(meeting),
                                              device_);
}

}  // namespace fsdp
