// Finds work of two streams on the same memory that nothing orders.
//
// Each stream has a clock that ticks with its work. An event carries what the recording stream has
// seen of all clocks to the stream that waits (vector clocks: Fidge and Mattern, 1988). Work says,
// when it is issued, which bytes it reads and writes; two pieces of work on common bytes, of which
// one writes, are in order only if the later one's stream has seen the earlier one's tick. So a
// wait that is missing is found in every run, whatever the streams' speeds, and with streams that
// run at once, too.
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

// Thread-safe. Memory that was not added is not looked at: it may be anybody's by now.
class RaceCheck {
 public:
  using Clock = std::vector<uint64_t>;  // by stream: how much of its work has been seen

  int add_stream(std::string name);
  void add_memory(const void* begin, int64_t bytes);
  void remove_memory(const void* begin);

  Clock mark(int stream);
  // `place` is who waits; the place that is left out learns nothing from the mark.
  void wait(int stream, const Clock& mark, const CodePlace& place);
  // The host has waited: whatever it issues from now on comes after.
  void host_waits(const Clock& mark);
  void work(int stream, std::string_view what, std::span<const TouchedBytes> touched);

  // "file.cpp:LINE" of every wait so far.
  std::set<std::string> places() const;
  void leave_out(std::string place);
  // Each pair of kinds of work once: "'adamw' on compute writes what 'all_gather' on gather reads".
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
