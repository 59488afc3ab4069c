#include "comm/job/posted_collectives.h"

#include <cstring>

namespace fsdp {
namespace {

// Calls `read` for the entry of the collective with this number and returns the result. A writer
// may replace the entry meanwhile. If the entry has the same number before and after `read`, all
// words belong to one collective.
template <class Read>
auto find(const PostedCollectives& posted, uint64_t sequence, Read read)
    -> std::optional<decltype(read(posted.entries[0]))> {
  const PostedCollectives::Entry& entry = posted.entries[sequence % PostedCollectives::kKept];
  if (sequence == 0 || entry.sequence.load(std::memory_order_seq_cst) != sequence) return {};
  auto found = read(entry);
  if (entry.sequence.load(std::memory_order_acquire) != sequence) return {};
  return found;
}

}  // namespace

uint64_t mark_of(const PostedCollective& posted) {
  return hash_of(fingerprint_of(posted.record), posted.communicator);
}

void post(PostedCollectives& posted, const PostedCollective& collective) noexcept {
  const uint64_t sequence = collective.record.sequence;
  if (sequence == 0) return;
  std::array<uint64_t, PostedCollectives::kWords> words{};
  std::memcpy(words.data(), &collective, sizeof collective);
  // Only this rank writes its posts, so it reads its own last post with a relaxed load.
  const uint64_t last = posted.last.load(std::memory_order_relaxed);
  const uint64_t before =
      last == 0 ? 0 : posted.entries[last % PostedCollectives::kKept].history.load();
  PostedCollectives::Entry& entry = posted.entries[sequence % PostedCollectives::kKept];
  entry.sequence.store(0, std::memory_order_relaxed);
  // These release stores follow the store of 0. So if a reader sees one of these words, its second
  // read of the entry's number returns 0 or a later number. The reader then drops the words.
  entry.mark.store(mark_of(collective), std::memory_order_release);
  entry.history.store(hash_of(before, fingerprint_of(collective.record)),
                      std::memory_order_release);
  for (size_t i = 0; i < words.size(); ++i) {
    entry.words[i].store(words[i], std::memory_order_release);
  }
  // These stores and the first load of find are seq_cst. So if two ranks each store and then load
  // the other's number, at least one of them sees the other's store.
  entry.sequence.store(sequence, std::memory_order_seq_cst);
  posted.last.store(sequence, std::memory_order_seq_cst);
}

std::optional<PostedCollective> find_posted(const PostedCollectives& posted, uint64_t sequence) {
  return find(posted, sequence, [](const PostedCollectives::Entry& entry) {
    std::array<uint64_t, PostedCollectives::kWords> words{};
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = entry.words[i].load(std::memory_order_acquire);
    }
    PostedCollective collective;
    std::memcpy(&collective, words.data(), sizeof collective);
    return collective;
  });
}

std::optional<uint64_t> find_history(const PostedCollectives& posted, uint64_t sequence) {
  return find(posted, sequence, [](const PostedCollectives::Entry& entry) {
    return entry.history.load(std::memory_order_acquire);
  });
}

std::optional<uint64_t> find_mark(const PostedCollectives& posted, uint64_t sequence) {
  return find(posted, sequence, [](const PostedCollectives::Entry& entry) {
    return entry.mark.load(std::memory_order_acquire);
  });
}

}  // namespace fsdp
