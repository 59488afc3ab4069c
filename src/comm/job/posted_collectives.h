// The last collectives that a rank has issued on a device, in memory that its peers can read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "comm/job/collective_record.h"

namespace fsdp {

// A collective, and the communicator on which it was issued.
struct PostedCollective {
  CollectiveRecord record;
  uint64_t communicator;  // identifier of the communicator, equal on all its ranks
};

// Returns the mark of a collective: a hash that is equal, in all processes, for equal collectives
// of one communicator.
uint64_t mark_of(const PostedCollective& posted);

// A ring buffer of a rank's last collectives, in memory that ranks share, also between processes. A
// ring of zeros is empty. Only its rank writes it, one collective at a time. All ranks may read it
// at any time.
struct PostedCollectives {
  // With this number, the segment of 4 ranks in a job of 1,024 has less than 2 MiB.
  static constexpr uint64_t kKept = 112;
  static constexpr size_t kWords = (sizeof(PostedCollective) + 7) / 8;

  struct Entry {
    std::atomic<uint64_t> sequence;  // 0: empty, or being written
    std::atomic<uint64_t> mark;      // mark_of the record
    std::atomic<uint64_t> history;   // hash of all fingerprints up to this collective
    std::array<std::atomic<uint64_t>, kWords> words;
  };

  std::atomic<uint64_t> last;  // the sequence posted last
  std::array<Entry, kKept> entries;
};

static_assert(std::is_trivially_copyable_v<PostedCollective>);

// Posts a collective. Ignores a collective without a place in the collective sequence.
void post(PostedCollectives& posted, const PostedCollective& collective) noexcept;
// Returns the rank's collective with this sequence number. Empty if the rank has not issued it, or
// if the ring does not hold it any more. If two ranks post and then read each other's posts, at
// least one of them sees the other's post.
std::optional<PostedCollective> find_posted(const PostedCollectives& posted, uint64_t sequence);
// Returns a hash of all records that the rank has posted up to this sequence number, regardless of
// communicators. If ranks of one collective sequence have posted equal records, their hashes are
// equal.
std::optional<uint64_t> find_history(const PostedCollectives& posted, uint64_t sequence);
// Returns only the mark of the collective. A comparison then reads two words instead of the record.
std::optional<uint64_t> find_mark(const PostedCollectives& posted, uint64_t sequence);

}  // namespace fsdp
