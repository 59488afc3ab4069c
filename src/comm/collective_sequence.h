// The collective sequence of a mesh. It orders all collectives of the mesh, over all its
// communicators and engines. It also adds the annotations of a rank's program to the collective
// that follows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

#include "comm/communicator.h"

namespace fsdp {

// The sequence in which all ranks of a mesh issue their collectives. A collective acquires its
// place in the sequence before it is issued. Thread-safe.
class CollectiveSequence {
 public:
  // `among_threads` is true if the ranks are threads of this process. `begin` is place 0 of the
  // sequence, see [Note: orders of a job].
  explicit CollectiveSequence(bool among_threads = false, uint64_t begin = 0)
      : among_threads_(among_threads), sequence_(begin) {}

  // A scope in which the calling thread holds a lock that other threads wait for. A collective
  // among threads would deadlock: it waits for ranks that wait for the lock. So `next` throws in
  // this scope.
  class Alone {
   public:
    // `inside` names the owner of the lock in the error, for example "an open BuildScope". `inside`
    // must have static lifetime.
    explicit Alone(std::string_view inside);
    ~Alone();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;
  };

  // Returns the tag of the next place. `numel` is the number of elements of all parts. The caller
  // must issue the collective at once. Errors: StateError if the ranks are threads and this thread
  // is inside an `Alone` scope.
  CollectiveTag next(Operation operation, int64_t numel, std::string_view label);
  // Annotates the next collective with an action of this rank's program, for example "optimizer
  // step 7: lr 0.001". Used for actions that all ranks must perform alike and that issue no
  // collective. The next tag carries all annotations since the previous tag. The collective of that
  // tag compares the annotations over all ranks. If they differ, the error shows them: "rank 0
  // issued all_gather of 16 float32 'a' #12 after 'optimizer step 7: lr 0.001', rank 1 …". All
  // bytes of the annotations are compared, but messages show only the first 95 bytes. The call is
  // cheap, because it allocates nothing.
  void note(std::string_view text);

  // Calls `observer` in order for every place that `next` returns from now on. While `observer`
  // runs, other threads wait for their places.
  using Observer =
      std::function<void(const CollectiveTag& tag, Operation operation, int64_t numel)>;
  void observe(Observer observer);

 private:
  const bool among_threads_;
  std::mutex mutex_;
  uint64_t sequence_;
  CollectiveAnnotation note_;  // the annotations since the last tag
  size_t note_length_ = 0;
  Observer observer_;  // empty if there is no observer
};

}  // namespace fsdp
