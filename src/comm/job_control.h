// The control segment of a job: the memory in which its ranks meet. Threads share it as it is,
// processes through a descriptor. All of it is plain bytes and lock-free atomics, valid when
// zeroed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/collective_record.h"
#include "comm/failure.h"

namespace fsdp {

// Communicators of one job that may be used at the same time, each from its own thread.
enum class ChannelKind : int { kGather, kReduce, kControl };
inline constexpr int kChannels = 3;
// Of a channel's staging area in every rank, for what peers cannot read where it lies: what is
// staged should still be in a cache when they read it.
inline constexpr int64_t kStagingBytes = 1 << 20;

// A payload up to this size travels in the rank's slot.
inline constexpr int64_t kLetterBytes = 1024;
// Parts of one meeting; a call with more takes several.
inline constexpr int kMeetingParts = 32;

enum class RankState : uint32_t {
  kAbsent,    // not attached yet
  kPresent,   // its mesh lives
  kFinished,  // its mesh was destroyed in good order
  kEnded,     // the launcher saw its process end; wait_status says how
};

struct alignas(64) RankStatus {
  std::atomic<RankState> state;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> wait_status;
  std::atomic<uint32_t> called_slow;  // 1: that others waited long for it was said
};

// Where peers find a part: an address (threads) or an offset in the rank's heap (processes).
struct PublishedPart {
  uint64_t send;
  uint64_t recv;
  bool send_direct;  // false: it comes through the staging area
  bool recv_direct;
};

// One rank's place in one channel. Written by that rank alone. The letters alternate: a rank writes
// letter n + 2 only after all have arrived at n + 1, hence have read letter n.
struct alignas(64) RankSlot {
  std::atomic<uint64_t> phase;  // meetings arrived at
  std::array<uint64_t, 2> fingerprints;
  std::atomic<uint64_t> sequence;  // of the record opened last, which stands when this is read
  alignas(64) std::atomic<uint32_t> reading;  // 1 while it reads peers' memory
  bool staged;                                // some part of the present collective is staged
  alignas(64) std::array<std::array<std::byte, kLetterBytes>, 2> letters;
  std::array<CollectiveRecord, 2> records;
  std::array<PublishedPart, kMeetingParts> parts;
};

struct alignas(64) ChannelBell {
  std::atomic<uint32_t> rings;     // the futex word of those that sleep
  std::atomic<uint32_t> sleepers;  // ranks that may be asleep
};

struct JobHeader {
  uint64_t layout;  // of this struct and those above; differs between versions of the library
  int32_t world_size;
  std::atomic<uint32_t> has_launcher;  // a launcher writes how processes end
};

// View of a control segment: header, failure, bells, a status a rank, slots a channel and rank.
class JobControl {
 public:
  static int64_t bytes_for(int world_size);
  // Requires: `memory` has bytes_for(world_size) bytes, aligned to 64. Owns nothing.
  JobControl(void* memory, int world_size)
      : base_(static_cast<std::byte*>(memory)), world_size_(world_size) {}

  int world_size() const { return world_size_; }
  JobHeader& header() const { return *at<JobHeader>(0); }
  FailureCell& failure() const { return *at<FailureCell>(kFailureAt); }
  RankStatus& status(int rank) const {
    return *at<RankStatus>(kStatusAt + rank * int64_t{sizeof(RankStatus)});
  }
  ChannelBell& bell(int channel) const {
    return *at<ChannelBell>(kBellsAt + channel * int64_t{sizeof(ChannelBell)});
  }
  RankSlot& slot(int channel, int rank) const {
    return *at<RankSlot>(kStatusAt + world_size_ * int64_t{sizeof(RankStatus)} +
                         (int64_t{channel} * world_size_ + rank) * int64_t{sizeof(RankSlot)});
  }

  // Wakes every rank that sleeps in any channel.
  void ring_all() const;

 private:
  static constexpr int64_t kFailureAt = 64;
  static constexpr int64_t kBellsAt = (kFailureAt + int64_t{sizeof(FailureCell)} + 63) / 64 * 64;
  static constexpr int64_t kStatusAt = kBellsAt + kChannels * int64_t{sizeof(ChannelBell)};

  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  std::byte* base_;
  int world_size_;
};

static_assert(sizeof(JobHeader) <= 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace fsdp
