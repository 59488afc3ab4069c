// Makes items (for example batches) before they are needed, in order, on a separate thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {

// A sequence of items: next() returns make(0), make(1), … make(count - 1). At most `depth` items
// are ready or being made. A prefetcher cannot be copied or moved, because its thread refers to it.
template <class T>
class Prefetcher {
 public:
  // Requires: depth > 0. `make` can be called on another thread, as long as this object exists.
  Prefetcher(int64_t count, int64_t depth, std::function<T(int64_t)> make)
      : count_(count), depth_(depth), make_(std::move(make)), thread_([this] { run(); }) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  // Waits until the current call of `make` returns. The remaining items are not made.
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Waits for the next item and returns it.
  // Errors: rethrows the exception that `make` threw for this item, and rethrows it in every later
  //   call. Throws StateError after the last item.
  T next() {
    std::unique_lock lock(mutex_);
    if (taken_ == count_) {
      throw StateError({.what = "next() was called after the last item",
                        .where = "input thread",
                        .hint = "call next() only as often as there are items"});
    }
    changed_.wait(lock, [this] { return !ready_.empty() || failure_ != nullptr; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    T item = std::move(ready_.front());
    ready_.pop_front();
    ++taken_;
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  void run() {
    for (int64_t index = 0; index < count_; ++index) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || index < taken_ + depth_; });
        if (stopping_) return;
      }
      if (!make_one(index)) return;
    }
  }

  bool make_one(int64_t index) {
    try {
      T item = make_(index);
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(item));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
    return failure_ == nullptr;  // no lock: only this thread writes failure_
  }

  const int64_t count_;
  const int64_t depth_;
  const std::function<T(int64_t)> make_;
  std::mutex mutex_;  // guards the members below, up to thread_
  std::condition_variable changed_;
  std::deque<T> ready_;
  std::exception_ptr failure_;
  int64_t taken_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // declared last, because the thread uses the members above
};

}  // namespace fsdp
