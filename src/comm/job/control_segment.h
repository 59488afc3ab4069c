// The control segment of a job: the memory in which its ranks of one host coordinate. Threads share
// it as it is, processes through a descriptor. All of it is plain bytes and lock-free atomics,
// valid when zeroed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "comm/job/collective_record.h"
#include "comm/job/failure_cell.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// What a communicator's ranks meet on. Communicators of different channels may be used at the same
// time, each from its own thread. The first channels are all ranks', the next those of the axes of
// a mesh of two; Communicator::split takes the others, each once: a rank may still look at a group
// that another has left.
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
inline constexpr int kChannels = kNamedChannels + 56;  // 8 for each part that a rank may be of
// Of a channel's staging area in every rank, for what peers cannot read where it lies: what is
// staged should still be in a cache when they read it.
inline constexpr int64_t kStagingBytes = 1 << 20;

// A payload up to this size is sent eagerly: it travels in the rank's endpoint, without a second
// barrier.
inline constexpr int64_t kEagerBytes = 1024;
// Parts that are exchanged at once; a call with more takes several rounds.
inline constexpr int kMaxParts = 32;

enum class RankState : uint32_t {
  kAbsent,    // not attached yet
  kPresent,   // its mesh lives
  kLeaving,   // its mesh is being destroyed in good order
  kFinished,  // its mesh was destroyed in good order
  kEnded,     // the launcher saw its process end; wait_status says how
};

struct alignas(64) RankStatus {
  std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> wait_status;
  std::atomic<uint32_t> out_of_memory;   // 1: of SIGKILL, with which the kernel freed memory
  std::atomic<uint32_t> reported_slow;   // 1: that others waited long for it was said
  std::atomic<uint32_t> split_channels;  // that this rank has taken
};

// Where peers find a part: an address (threads) or an offset in the rank's heap (processes).
struct PublishedPart {
  uint64_t send;
  uint64_t recv;
  bool send_direct;  // false: it comes through the staging area
  bool recv_direct;
};

// One rank's end of one channel. Written by that rank alone. Of fingerprints, eager buffers and
// records there are two, used in turn: a rank writes again what collective n has used only after
// all have arrived at the next collective, hence have read it. What peers poll (the first line) and
// what the rank writes meanwhile are two lines apart, since a core fetches lines in pairs.
struct alignas(128) Endpoint {
  std::atomic<uint64_t> phase;  // barriers arrived at
  std::array<uint64_t, 2> fingerprints;
  std::atomic<uint64_t> sequence;  // of the record opened last, which stands when this is read
  // Tells apart the groups on one channel, of an axis or of a split: 1 + the group's lowest rank of
  // the job. 0 on the channels of all ranks, and where the rank is in no group.
  std::atomic<uint32_t> group;
  alignas(128) std::atomic<uint32_t> reading;  // 1 while it reads peers' memory
  bool staged;                                 // some part of the present collective is staged
  alignas(64) std::array<std::array<std::byte, kEagerBytes>, 2> eager;
  std::array<CollectiveRecord, 2> records;
  std::array<PublishedPart, kMaxParts> parts;
};

// The ranks that sleep until the last one arrives in a channel.
struct alignas(64) WaitQueue {
  std::atomic<uint32_t> wakes;     // the futex word of those that sleep
  std::atomic<uint32_t> sleepers;  // ranks that may be asleep
};

struct SegmentHeader {
  uint64_t layout;  // of this struct and those above; differs between versions of the library
  int32_t world_size;
  std::atomic<uint32_t> has_launcher;  // a launcher writes how processes end
};

// View of a control segment: header, failure, a wait queue a channel, an endpoint a channel and
// rank, a status a rank, what was posted a rank and host order.
class ControlSegment {
 public:
  static int64_t bytes_for(int world_size);
  // Requires: `memory` has bytes_for(world_size) bytes, aligned to 128. Owns nothing.
  ControlSegment(void* memory, int world_size)
      : base_(static_cast<std::byte*>(memory)), world_size_(world_size) {}

  int world_size() const { return world_size_; }
  SegmentHeader& header() const { return *at<SegmentHeader>(0); }
  FailureCell& failure() const { return *at<FailureCell>(kFailureAt); }
  RankStatus& status(int rank) const {
    return *at<RankStatus>(statuses_at() + rank * int64_t{sizeof(RankStatus)});
  }
  // By `rank` in that of its host orders; see order_of.
  PostedCollectives& posted(int rank, int order) const {
    return *at<PostedCollectives>(statuses_at() + world_size_ * int64_t{sizeof(RankStatus)} +
                                  (int64_t{rank} * kOrders + order) *
                                      int64_t{sizeof(PostedCollectives)});
  }
  // The channels on which `rank` may meet others: those that no split of its has taken are not.
  int channels_of(int rank) const {
    return kNamedChannels + static_cast<int>(status(rank).split_channels.load());
  }
  WaitQueue& wait_queue(int channel) const {
    return *at<WaitQueue>(kQueuesAt + channel * int64_t{sizeof(WaitQueue)});
  }
  Endpoint& endpoint(int channel, int rank) const {
    return *at<Endpoint>(kEndpointsAt +
                         (int64_t{channel} * world_size_ + rank) * int64_t{sizeof(Endpoint)});
  }

  // Wakes every rank that sleeps in any channel.
  void wake_all() const;

 private:
  int64_t statuses_at() const {
    return kEndpointsAt + int64_t{world_size_} * kChannels * int64_t{sizeof(Endpoint)};
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
};

static_assert(sizeof(SegmentHeader) <= 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace fsdp
