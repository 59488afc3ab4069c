#include "simulator/test_device.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "simulator/watched_ranks.h"

namespace fsdp::testing {

MakeRanks ranks_of_environment() {
  const char* text = std::getenv("FSDP_TEST_DEVICE");
  if (text == nullptr) return nullptr;
  const std::string_view device = text;
  if (device == "checked") return make_checked_ranks;
  if (is_simulated_gpu()) return simulated_ranks_of_environment();
  throw std::invalid_argument("FSDP_TEST_DEVICE is neither unset nor 'checked' nor 'simulated'");
}

bool is_simulated_gpu() {
  const char* text = std::getenv("FSDP_TEST_DEVICE");
  return text != nullptr && std::string_view(text) == "simulated";
}

}  // namespace fsdp::testing
