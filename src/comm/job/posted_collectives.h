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

// A collective, with the communicator on which it was issued.
struct PostedCollective {
  CollectiveRecord record;
  uint64_t communicator;  // equal on all of its ranks
};

// Returns a hash that is equal for equal collectives of one communicator, in all processes.
uint64_t mark_of(const PostedCollective& posted);

// A ring of a rank's last collectives, in memory that ranks share, also between processes; all
// zeros is empty. Only its rank writes it, one collective at a time; all ranks may read it at any
// time.
struct PostedCollectives {
  static constexpr uint64_t kKept = 128;
  static constexpr size_t kWords = (sizeof(PostedCollective) + 7) / 8;

  struct Entry {
    std::atomic<uint64_t> sequence;  // 0: no record, or it is being written
    std::atomic<uint64_t> mark;      // mark_of the record
    std::atomic<uint64_t> history;   // hash of all fingerprints up to this one
    std::array<std::atomic<uint64_t>, kWords> words;
  };

  std::atomic<uint64_t> last;  // the sequence posted last
  std::array<Entry, kKept> entries;
};

static_assert(std::is_trivially_copyable_v<PostedCollective>);

// Posts a collective. Ignores one without a place in the collective sequence.
void post(PostedCollectives& posted, const PostedCollective& collective) noexcept;
// Returns the rank's collective at that place, if it has issued it and it is still kept. If two
// ranks post and then look at each other, at least one sees the other's.
std::optional<PostedCollective> find_posted(const PostedCollectives& posted, uint64_t sequence);
// Returns a hash that is equal for ranks whose records are equal from the first to this one,
// whatever the communicators: in one collective sequence, for all ranks.
std::optional<uint64_t> find_history(const PostedCollectives& posted, uint64_t sequence);
// Returns its mark alone: a comparison then reads two words instead of the record.
std::optional<uint64_t> find_mark(const PostedCollectives& posted, uint64_t sequence);

}  // namespace fsdp
