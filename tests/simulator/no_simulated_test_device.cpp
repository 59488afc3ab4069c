// Replaces torch/simulated_test_device.cpp in a build without CUDA.
#include <stdexcept>

#include "simulator/test_device.h"

namespace fsdp::testing {

MakeRanks simulated_ranks_of_environment() {
  throw std::invalid_argument("FSDP_TEST_DEVICE is 'simulated', and this build has no CUDA");
}

}  // namespace fsdp::testing
