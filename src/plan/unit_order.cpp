#include "plan/unit_order.h"

#include <algorithm>

namespace fsdp {

// Moves the position in the order past the unit. The search begins at the position, so a unit that
// is called twice is found at its next occurrence.
void UnitOrder::Half::follow(int unit) {
  const auto from = units.begin() + static_cast<std::ptrdiff_t>(std::min(next, units.size()));
  const auto found = std::find(from, units.end(), unit);
  if (found != units.end()) next = static_cast<size_t>(found - units.begin()) + 1;
}

// Returns the next `depth` distinct units. The current unit may occur again, but it is already
// unsharded, so it is skipped.
std::vector<int> UnitOrder::Half::ahead(int depth) const {
  std::vector<int> found;
  for (size_t i = next; i < units.size() && static_cast<int>(found.size()) < depth; ++i) {
    const bool is_current = next > 0 && units[i] == units[next - 1];
    if (!is_current && std::find(found.begin(), found.end(), units[i]) == found.end()) {
      found.push_back(units[i]);
    }
  }
  return found;
}

}  // namespace fsdp
