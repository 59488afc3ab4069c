// What a rank has issued on a device, where its peers can look: the last collectives of its host
// order.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "comm/job/collective_record.h"

namespace fsdp {

struct PostedCollective {
  CollectiveRecord record;
  uint64_t communicator;  // equal for the ranks of one
};

// Equal for equal collectives of one communicator, in all processes.
uint64_t mark_of(const PostedCollective& posted);

// Lies, zeroed, in memory that ranks share, also between processes. Written by its rank alone, a
// collective at a time; read by all at any time.
struct PostedCollectives {
  static constexpr uint64_t kKept = 128;
  static constexpr size_t kWords = (sizeof(PostedCollective) + 7) / 8;

  struct Entry {
    std::atomic<uint64_t> sequence;  // of the record; 0: none, or it is being written
    std::atomic<uint64_t> mark;      // what mark_of says of the record
    std::atomic<uint64_t> history;   // of the fingerprints of all that were posted until then
    std::array<std::atomic<uint64_t>, kWords> words;
  };

  std::atomic<uint64_t> last;  // the sequence posted last
  std::array<Entry, kKept> entries;
};

static_assert(std::is_trivially_copyable_v<PostedCollective>);

// Nothing for a record without a place in the host order.
void post(PostedCollectives& posted, const PostedCollective& collective) noexcept;
// The rank's collective of that place, if it has issued it and it is still kept. Of two ranks that
// post and look at each other, one sees the other's.
std::optional<PostedCollective> find_posted(const PostedCollectives& posted, uint64_t sequence);
// Equal for ranks whose records have been equal from the first to this one, whatever the
// communicators: of one host order all ranks' are.
std::optional<uint64_t> find_history(const PostedCollectives& posted, uint64_t sequence);
// Its mark alone: who compares reads two words instead of all.
std::optional<uint64_t> find_mark(const PostedCollectives& posted, uint64_t sequence);

}  // namespace fsdp
