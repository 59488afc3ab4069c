// Long runs test every case of a sweep. Ordinary runs test some of the cases.
#pragma once

#include <cstdlib>

namespace fsdp::testing {

// Returns true in `tools/test long` and `tools/test sim`, which set FSDP_TEST_LONG.
inline bool is_long_run() { return std::getenv("FSDP_TEST_LONG") != nullptr; }

}  // namespace fsdp::testing
