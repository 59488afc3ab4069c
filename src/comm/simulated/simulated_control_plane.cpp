#include "comm/simulated/simulated_control_plane.h"

namespace fsdp {

std::vector<std::string> SimulatedControlPlane::exchange(const CollectiveTag& tag,
                                                         std::string_view text) {
  if (failed(failure_)) throw_first_failure(tag.label);
  return std::vector<std::string>(world_size_, std::string(text));
}

void SimulatedControlPlane::agree(const CollectiveTag& tag,
                                  const std::vector<std::string>& /*lines*/) {
  if (failed(failure_)) throw_first_failure(tag.label);
}

}  // namespace fsdp
