// A control segment: the memory through which ranks coordinate. Threads share the memory itself.
// Processes of one host map it through a descriptor. It consists only of plain bytes and lock-free
// atomics. A segment of zeros is valid.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "comm/job/collective_record.h"
#include "comm/job/failure_cell.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// The number of a channel. A channel is the shared state of one communicator's ranks. Several
// threads may use communicators of different channels at the same time. The first channels are for
// all ranks. The next ones are for the axes of a mesh with two axes. Communicator::split uses each
// of the remaining channels only once, because a rank may still read the state of a group there
// after another rank has left the group.
enum class Channel : int {
  kGather,
  kReduce,
  kControl,
  kModules,
  kShardGather,
  kShardReduce,
  kReplicateGather,
  kReplicateReduce,
};
inline constexpr int kNamedChannels = 8;
// The other channels are for splits: 8 for each of the at most 7 parts that contain a rank.
inline constexpr int kChannels = kNamedChannels + 56;
// Size of a rank's staging area in a channel. The area is for data that peers cannot read in place.
// The area is small, so that staged data are still in a cache when peers read them.
inline constexpr int64_t kStagingBytes = 1 << 20;

// The largest payload that is sent eagerly: within the rank's endpoint, without a second barrier.
inline constexpr int64_t kEagerBytes = 1024;
// The largest number of parts in one exchange. A call with more parts needs several exchanges.
inline constexpr int kMaxParts = 32;

enum class RankState : uint32_t {
  kAbsent,    // not attached yet
  kPresent,   // the rank's mesh exists
  kLeaving,   // the rank's mesh is being destroyed without an error
  kFinished,  // the rank's mesh was destroyed without an error
  kEnded,     // the launcher saw the rank's process end; see wait_status
};

// The state of one rank, which all other ranks can read.
struct alignas(64) RankStatus {
  std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> wait_status;
  std::atomic<uint32_t> out_of_memory;   // 1: the kernel killed the process to free memory
  std::atomic<uint32_t> reported_slow;   // 1: a peer has reported this rank as slow
  std::atomic<uint32_t> split_channels;  // number of channels that splits of this rank have used
  std::atomic<uint32_t> host_waits;      // number of this rank's waits for ranks of other hosts
};

// The place at which peers find a part: an address (threads), or an offset in the rank's heap
// (processes).
struct PublishedPart {
  uint64_t send;
  uint64_t recv;
  bool send_direct;  // false: the data pass through the staging area
  bool recv_direct;
};

// The state of one rank in one channel. Only this rank writes it. Fingerprints, eager buffers and
// records exist twice and are used in turn. So a rank overwrites the data of a collective only
// after all ranks have arrived at the next collective, that is, after all ranks have read these
// data. Peers poll the first cache line while this rank may write later ones. A core fetches lines
// in pairs, so the line next to the polled one holds no data that this rank writes in the meantime.
struct alignas(128) Endpoint {
  std::atomic<uint64_t> phase;  // number of barriers at which this rank has arrived
  std::array<uint64_t, 2> fingerprints;
  std::atomic<uint64_t> sequence;  // number of the last opened record; stored after that record
  // Distinguishes the groups that share one channel: the groups of an axis or of a split. The value
  // is 1 + the group's lowest rank of the job. The value is 0 on a channel that all ranks use, and
  // for a rank that is in no group.
  std::atomic<uint32_t> group;
  alignas(128) std::atomic<uint32_t> reading;  // 1 while this rank reads peers' memory
  bool staged;                                 // some part of the open collective is staged
  alignas(64) std::array<std::array<std::byte, kEagerBytes>, 2> eager;
  std::array<CollectiveRecord, 2> records;
  std::array<PublishedPart, kMaxParts> parts;
};

// The queue of ranks that sleep until the last rank arrives in a channel.
struct alignas(64) WaitQueue {
  std::atomic<uint32_t> wakes;     // futex word on which ranks sleep
  std::atomic<uint32_t> sleepers;  // number of ranks that may be asleep
};

// The header at the beginning of a segment.
struct SegmentHeader {
  uint64_t layout;  // hash of the layouts above, which differ between versions
  int32_t world_size;
  int32_t local_begin, local_count;    // the ranks that share the segment
  std::atomic<uint32_t> has_launcher;  // 1: a launcher reports how processes end
};

// Ranks of the job whose numbers follow one another.
struct RankRange {
  int begin = 0;
  int count = 0;

  bool contains(int rank) const { return rank >= begin && rank < begin + count; }
  bool operator==(const RankRange&) const = default;
};
// Returns "ranks 2 to 3", or "rank 2" for a single rank.
std::string describe(RankRange ranks);

// A view of a control segment. The segment contains, in this order: the header, the failure, one
// wait queue per channel, one endpoint per channel and local rank, one status per rank of the job,
// the posted collectives per local rank and sequence, and the last posted place per rank of the job
// and sequence. Local ranks are those that share the memory. About another rank, the segment holds
// only what its process reports, so a job of many hosts needs little memory for it.
class ControlSegment {
 public:
  // Returns the size of a segment.
  static int64_t bytes_for(int world_size, RankRange local);
  static int64_t bytes_for(int world_size) { return bytes_for(world_size, {0, world_size}); }
  // `memory` must have bytes_for(world_size, local) bytes, aligned to 128 bytes. The view does not
  // own it.
  ControlSegment(void* memory, int world_size, RankRange local)
      : base_(static_cast<std::byte*>(memory)), world_size_(world_size), local_(local) {}
  // A segment that all ranks share.
  ControlSegment(void* memory, int world_size)
      : ControlSegment(memory, world_size, {0, world_size}) {}

  int world_size() const { return world_size_; }
  RankRange local() const { return local_; }
  bool is_local(int rank) const { return local_.contains(rank); }
  SegmentHeader& header() const { return *at<SegmentHeader>(0); }
  FailureCell& failure() const { return *at<FailureCell>(kFailureAt); }
  RankStatus& status(int rank) const {
    return *at<RankStatus>(statuses_at() + rank * int64_t{sizeof(RankStatus)});
  }
  // Returns the collectives that `rank` posted in the sequence with index `order`; see order_of.
  // Requires: `rank` is local.
  PostedCollectives& posted(int rank, int order) const {
    return *at<PostedCollectives>(posted_at() + (int64_t{rank - local_.begin} * kOrders + order) *
                                                    int64_t{sizeof(PostedCollectives)});
  }
  // Returns the place of the last collective that `rank` posted in the sequence with index `order`.
  // If the rank is not local, it is the place that its process has reported.
  std::atomic<uint64_t>& last_posted(int rank, int order) const {
    if (is_local(rank)) return posted(rank, order).last;
    return *at<std::atomic<uint64_t>>(reported_at() + (int64_t{rank} * kOrders + order) *
                                                          int64_t{sizeof(uint64_t)});
  }
  // Returns the number of channels that `rank` may use. The rank may use the first channels: the
  // named channels and those that splits of this rank have used.
  int channels_of(int rank) const {
    return kNamedChannels + static_cast<int>(status(rank).split_channels.load());
  }
  WaitQueue& wait_queue(int channel) const {
    return *at<WaitQueue>(kQueuesAt + channel * int64_t{sizeof(WaitQueue)});
  }
  // Requires: `rank` is local.
  Endpoint& endpoint(int channel, int rank) const {
    const int64_t index = int64_t{channel} * local_.count + rank - local_.begin;
    return *at<Endpoint>(kEndpointsAt + index * int64_t{sizeof(Endpoint)});
  }

  // Wakes every rank that sleeps in any channel.
  void wake_all() const;

 private:
  int64_t statuses_at() const {
    return kEndpointsAt + int64_t{local_.count} * kChannels * int64_t{sizeof(Endpoint)};
  }
  int64_t posted_at() const { return statuses_at() + world_size_ * int64_t{sizeof(RankStatus)}; }
  int64_t reported_at() const {
    return posted_at() + int64_t{local_.count} * kOrders * int64_t{sizeof(PostedCollectives)};
  }

  static constexpr int64_t kFailureAt = 64;
  static constexpr int64_t kQueuesAt =
      round_up(kFailureAt + int64_t{sizeof(FailureCell)}, alignof(WaitQueue));
  static constexpr int64_t kEndpointsAt =
      round_up(kQueuesAt + kChannels * int64_t{sizeof(WaitQueue)}, alignof(Endpoint));

  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  std::byte* base_;
  int world_size_;
  RankRange local_;
};

static_assert(sizeof(SegmentHeader) <= 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace fsdp
