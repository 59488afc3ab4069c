// The control segment of a job: the memory in which its ranks of one host coordinate. Threads share
// the memory itself, processes map it through a descriptor. All of it is plain bytes and lock-free
// atomics; all zeros is a valid state.
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

// The shared state of one communicator's ranks, by number. Communicators of different channels may
// be used at the same time, each from its own thread. The first channels are for all ranks, the
// next for the axes of a mesh with two. Communicator::split uses each of the others once, because a
// rank may still look at a group that another has left.
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
inline constexpr int kChannels = kNamedChannels + 56;  // 8 for each of a rank's 7 parts
// Size of a rank's staging area in a channel, for data that peers cannot read in place. Staged data
// should still be in a cache when they read it.
inline constexpr int64_t kStagingBytes = 1 << 20;

// A payload up to this size is sent eagerly: in the rank's endpoint, without a second barrier.
inline constexpr int64_t kEagerBytes = 1024;
// Parts that one exchange covers; a call with more needs several.
inline constexpr int kMaxParts = 32;

enum class RankState : uint32_t {
  kAbsent,    // not attached yet
  kPresent,   // its mesh lives
  kLeaving,   // its mesh is being destroyed in good order
  kFinished,  // its mesh was destroyed in good order
  kEnded,     // the launcher saw its process end; wait_status says how
};

// The state of one rank, for all others.
struct alignas(64) RankStatus {
  std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> wait_status;
  std::atomic<uint32_t> out_of_memory;   // 1: the kernel killed it to free memory
  std::atomic<uint32_t> reported_slow;   // 1: reported as slow
  std::atomic<uint32_t> split_channels;  // used by splits of this rank
};

// The place of a part for peers: an address (threads) or an offset in the rank's heap (processes).
struct PublishedPart {
  uint64_t send;
  uint64_t recv;
  bool send_direct;  // false: through the staging area
  bool recv_direct;
};

// One rank's end of one channel. Only that rank writes it. Fingerprints, eager buffers and records
// exist twice and are used in turn: a rank overwrites those of collective n only after all ranks
// have arrived at the next collective, hence have read them. The lines that peers poll (the first)
// and that the rank writes meanwhile are two lines apart, because a core fetches lines in pairs.
struct alignas(128) Endpoint {
  std::atomic<uint64_t> phase;  // barriers arrived at
  std::array<uint64_t, 2> fingerprints;
  std::atomic<uint64_t> sequence;  // the last opened record's, complete when this is read
  // Distinguishes the groups on one channel, of an axis or of a split: 1 + the group's lowest
  // rank of the job. 0 on the channels of all ranks, and for a rank in no group.
  std::atomic<uint32_t> group;
  alignas(128) std::atomic<uint32_t> reading;  // 1 while it reads peers' memory
  bool staged;                                 // some part of the present collective is staged
  alignas(64) std::array<std::array<std::byte, kEagerBytes>, 2> eager;
  std::array<CollectiveRecord, 2> records;
  std::array<PublishedPart, kMaxParts> parts;
};

// The ranks that sleep until the last one arrives in a channel.
struct alignas(64) WaitQueue {
  std::atomic<uint32_t> wakes;     // futex word of the sleepers
  std::atomic<uint32_t> sleepers;  // ranks that may be asleep
};

// The first bytes of a segment.
struct SegmentHeader {
  uint64_t layout;  // hash of the layouts above; differs between versions of the library
  int32_t world_size;
  std::atomic<uint32_t> has_launcher;  // 1: a launcher reports how processes end
};

// A view of a control segment, in this order: header, failure, a wait queue per channel, an
// endpoint per channel and rank, a status per rank, posted collectives per rank and sequence.
class ControlSegment {
 public:
  // Returns the size of a segment.
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
  // Returns the collectives that `rank` posted in one of its collective sequences; see order_of.
  PostedCollectives& posted(int rank, int order) const {
    return *at<PostedCollectives>(statuses_at() + world_size_ * int64_t{sizeof(RankStatus)} +
                                  (int64_t{rank} * kOrders + order) *
                                      int64_t{sizeof(PostedCollectives)});
  }
  // Returns how many channels, the first ones, `rank` may use: those that none of its splits has
  // used are excluded.
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
