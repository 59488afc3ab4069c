// The one host order of a mesh: every collective, over all communicators and engines, numbered, and
// what a rank's program did between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace fsdp {

// All ranks of a mesh issue the same collectives in the same order; each takes its place here
// first. Thread-safe.
class HostOrder {
 public:
  // `among_threads`: the ranks are threads of this process.
  explicit HostOrder(bool among_threads = false) : among_threads_(among_threads) {}

  // While one lives, the calling thread holds a lock that other threads wait for. A collective
  // among threads would wait for ranks that wait for the lock, so `next` refuses it.
  class Alone {
   public:
    // `inside`: what holds the lock, for the error: "an open BuildScope". Of static lifetime.
    explicit Alone(std::string_view inside);
    ~Alone();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;
  };

  // The next place. Its operation, `numel` (all parts) and `label` are mixed into hash(). The
  // caller issues the collective at once.
  // Errors: StateError among threads while this thread is Alone.
  CollectiveTag next(Operation operation, int64_t numel, std::string_view label);
  // Says what this rank's program did that all ranks must have done alike and that has no
  // collective of its own: "optimizer step 7: lr 0.001". The next tag takes all that was noted
  // since the tag before, so that its collective compares it over all ranks and an error shows it:
  // "rank 0 issued all_gather of 16 float32 'a' #12 after 'optimizer step 7: lr 0.001', rank 1 …".
  // Every byte is compared, messages show the first 95. Cheap: allocates nothing.
  void note(std::string_view text);

  // Of all that was issued and noted, in its order.
  uint64_t hash() const;
  // The last collectives issued, oldest first, one readable line each, as "#12 all_gather 4096
  // layers.0": the event log of tests and of error messages. At most 64, or all since keep_all().
  std::vector<std::string> recent() const;
  void keep_all();

 private:
  struct Entry {
    uint64_t sequence;
    Operation operation;
    int64_t numel;
    std::string label;
  };

  const bool among_threads_;
  mutable std::mutex mutex_;
  uint64_t sequence_ = 0;
  uint64_t hash_ = 0;
  CollectiveNote note_;  // since the last tag
  size_t note_length_ = 0;
  bool keeps_all_ = false;
  std::deque<Entry> entries_;
};

}  // namespace fsdp
