// Which collectives a mesh has issued, by the order that its ranks compare.
#pragma once

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "comm/mesh_state.h"

namespace fsdp::testing {

using CollectiveCounts = std::map<std::string, int64_t>;

// By operation, since the order had `from` entries. Requires: the order keeps all of them
// (HostOrder::keep_all).
inline CollectiveCounts counts_since(const Mesh& mesh, size_t from) {
  CollectiveCounts counts;
  const std::vector<std::string> all = mesh.state().order().recent();
  for (size_t i = from; i < all.size(); ++i) {
    std::istringstream line(all[i]);  // "12 reduce_scatter 'u0'"
    std::string number, operation;
    line >> number >> operation;
    ++counts[operation];
  }
  return counts;
}

}  // namespace fsdp::testing
