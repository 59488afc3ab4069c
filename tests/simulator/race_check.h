// Finds unordered work of two streams on the same memory.
//
// Each stream has a clock that counts its work. An event holds a copy of all clock values that the
// recording stream knows. A stream that waits for the event learns these values (vector clocks:
// Fidge and Mattern, 1988). When work is issued, it declares the bytes that it reads and writes.
// Two pieces of work conflict if they access common bytes and at least one writes. They are ordered
// only if the stream of the later one has seen the tick of the earlier one. So a missing wait is
// found in every execution, at any speed of the streams, and also if streams run concurrently.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/code_place.h"

namespace fsdp::testing {

struct TouchedBytes {
  const void* begin = nullptr;
  int64_t count = 0;
  bool writes = false;
};

// Thread-safe. Ignores memory that was not added, because another owner may use it now.
class RaceCheck {
 public:
  using Clock = std::vector<uint64_t>;  // by stream: number of its works that were seen

  int add_stream(std::string name);
  void add_memory(const void* begin, int64_t bytes);
  void remove_memory(const void* begin);

  Clock mark(int stream);
  // `place` is the place of the wait in the code. At the place that leave_out selected, the stream
  // learns nothing from the mark.
  void wait(int stream, const Clock& mark, const CodePlace& place);
  // Records that the host has waited. All work that it issues from now on is ordered after the
  // mark.
  void host_waits(const Clock& mark);
  void work(int stream, std::string_view what, std::span<const TouchedBytes> touched);

  // Returns "file.cpp:LINE" for every wait until now.
  std::set<std::string> places() const;
  void leave_out(std::string place);
  // Returns each pair of conflicting names once, as "'adamw' on compute writes what 'all_gather' on
  // gather reads".
  std::set<std::string> found() const;

 private:
  struct Access {
    uintptr_t begin, end;
    int stream;
    uint64_t tick;
    bool writes;
    std::string what;
  };
  bool is_known(uintptr_t begin) const;
  bool is_seen(int stream, const Access& access) const;
  void check(int stream, std::string_view what, const Access& now);

  mutable std::mutex mutex_;
  std::vector<std::string> streams_;
  std::vector<Clock> clocks_;
  std::map<uintptr_t, uintptr_t> memory_;  // begin to end
  std::vector<Access> accesses_;
  std::set<std::string> places_;
  std::string left_out_;
  std::set<std::string> found_;
};

}  // namespace fsdp::testing
