#include "comm/simulated/simulated_control_plane.h"

namespace fsdp {

std::vector<std::string> SimulatedControlPlane::exchange(std::string_view what,
                                                         std::string_view text) {
  if (failed(failure_)) throw_first_failure(what);
  return std::vector<std::string>(world_size_, std::string(text));
}

void SimulatedControlPlane::agree(std::string_view what,
                                  const std::vector<std::string>& /*lines*/) {
  if (failed(failure_)) throw_first_failure(what);
}

}  // namespace fsdp
