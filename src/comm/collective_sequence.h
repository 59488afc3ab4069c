// The collective sequence of a mesh: the one order of all its collectives, over all communicators
// and engines, and the annotations of a rank's program between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

#include "comm/communicator.h"

namespace fsdp {

// The sequence in which all ranks of a mesh issue their collectives. A collective acquires its
// place here before it is issued. Thread-safe.
class CollectiveSequence {
 public:
  // `among_threads`: the ranks are threads of this process.
  // `begin`: place 0 of the sequence, see [Note: orders of a job].
  explicit CollectiveSequence(bool among_threads = false, uint64_t begin = 0)
      : among_threads_(among_threads), sequence_(begin) {}

  // A scope in which the calling thread holds a lock that other threads wait for. A collective
  // among threads would wait for ranks that wait for the lock, so `next` throws.
  class Alone {
   public:
    // `inside` names the owner of the lock in the error, as "an open BuildScope". It has static
    // lifetime.
    explicit Alone(std::string_view inside);
    ~Alone();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;
  };

  // Returns the tag of the next place. `numel` counts the elements of all parts. The caller issues
  // the collective at once.
  // Errors: StateError among threads while this thread is Alone.
  CollectiveTag next(Operation operation, int64_t numel, std::string_view label);
  // Annotates the next collective with an action of this rank's program that all ranks must perform
  // alike and that has no collective of its own: "optimizer step 7: lr 0.001". The next tag carries
  // all annotations since the tag before it. Its collective compares them over all ranks, and an
  // error shows them: "rank 0 issued all_gather of 16 float32 'a' #12 after 'optimizer step 7: lr
  // 0.001', rank 1 …". All bytes are compared; messages show the first 95. Cheap: allocates
  // nothing.
  void note(std::string_view text);

  // Calls `observer` for every place that `next` returns from now on, in order. Other threads wait
  // for their places while it runs.
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
