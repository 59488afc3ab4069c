// The one host order of a mesh: every collective, over all communicators and engines, numbered, and
// what a rank's program did between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

#include "comm/communicator.h"

namespace fsdp {

// All ranks of a mesh issue the same collectives in the same order; each takes its place here
// first. Thread-safe.
class CollectiveSequence {
 public:
  // `among_threads`: the ranks are threads of this process.
  // `begin`: its place 0, see [Note: orders of a job].
  explicit CollectiveSequence(bool among_threads = false, uint64_t begin = 0)
      : among_threads_(among_threads), sequence_(begin) {}

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

  // The next place. `numel`: of all parts. The caller issues the collective at once.
  // Errors: StateError among threads while this thread is Alone.
  CollectiveTag next(Operation operation, int64_t numel, std::string_view label);
  // Says what this rank's program did that all ranks must have done alike and that has no
  // collective of its own: "optimizer step 7: lr 0.001". The next tag takes all that was noted
  // since the tag before, so that its collective compares it over all ranks and an error shows it:
  // "rank 0 issued all_gather of 16 float32 'a' #12 after 'optimizer step 7: lr 0.001', rank 1 …".
  // Every byte is compared, messages show the first 95. Cheap: allocates nothing.
  void note(std::string_view text);

  // Hears of every place that is given out from now on, in order; while it is called others wait
  // for theirs.
  using Observer =
      std::function<void(const CollectiveTag& tag, Operation operation, int64_t numel)>;
  void observe(Observer observer);

 private:
  const bool among_threads_;
  std::mutex mutex_;
  uint64_t sequence_;
  CollectiveAnnotation note_;  // since the last tag
  size_t note_length_ = 0;
  Observer observer_;  // empty: no listener
};

}  // namespace fsdp
