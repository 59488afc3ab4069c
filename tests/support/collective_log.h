// Records the collectives that a mesh issues, in the order that the ranks compare.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh_state.h"

namespace fsdp::testing {

using CollectiveCounts = std::map<std::string, int64_t>;

// A log of the collectives that are issued after its construction. A mesh has at most one log.
class CollectiveLog {
 public:
  explicit CollectiveLog(const Mesh& mesh) {
    state_of(mesh).order().observe(
        [entries = entries_](const CollectiveTag& tag, Operation operation, int64_t numel) {
          entries->push_back(
              {std::string(name_of(operation)),
               fmt::format("#{} {} {} {}", tag.sequence, name_of(operation), numel, tag.label)});
        });
  }

  size_t size() const { return entries_->size(); }
  // Returns lines such as "#12 all_gather 4096 layers.0", the oldest first.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const Entry& entry : *entries_) lines.push_back(entry.line);
    return lines;
  }
  // Returns the counts by operation. Skips the first `from` collectives.
  CollectiveCounts counts_since(size_t from) const {
    CollectiveCounts counts;
    for (size_t i = from; i < size(); ++i) ++counts[(*entries_)[i].operation];
    return counts;
  }

 private:
  struct Entry {
    std::string operation, line;
  };
  std::shared_ptr<std::vector<Entry>> entries_ = std::make_shared<std::vector<Entry>>();
};

}  // namespace fsdp::testing
