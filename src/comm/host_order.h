// The one host order of a mesh: every collective, over all communicators and engines, numbered and
// mixed into a rolling hash, and what was noted between them.
#pragma once

#include <fsdp/communicator.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Thread-safe.
class HostOrder {
 public:
  // With all that was noted since the last one.
  CollectiveTag next(Operation operation, int64_t numel, std::string_view label);
  void note(std::string_view text);
  uint64_t hash() const;
  // Oldest first: "#12 all_gather 4096 layers.0". At most kRecentCollectives, or all since
  // keep_all().
  std::vector<std::string> recent() const;
  void keep_all();

 private:
  struct Entry {
    uint64_t sequence;
    Operation operation;
    int64_t numel;
    std::string label;
  };

  mutable std::mutex mutex_;
  uint64_t sequence_ = 0;
  uint64_t hash_ = 0;
  CollectiveNote note_;  // since the last tag
  size_t note_length_ = 0;
  bool keeps_all_ = false;
  std::deque<Entry> entries_;
};

inline constexpr size_t kRecentCollectives = 64;

}  // namespace fsdp
