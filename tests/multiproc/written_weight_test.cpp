// Tests a forward that writes a weight. The weight is mapped from the memory of all ranks.
#include <doctest/doctest.h>

#include "launch.h"

namespace fsdp::testing {

TEST_CASE("a write to a mapped parameter is an error that names it and its unit, not a SIGSEGV") {
  for (const std::string how : {"clamp", "data"}) {
    CAPTURE(how);
    const ProcessResult result = run_process({FSDP_RUN, "-n", "2", TORCH_RANK, "writing", how}, {});
    CAPTURE(result.err);
    CHECK(result.code == 70);
    CHECK(result.err.find("fsdp: error[70] rank") != std::string::npos);
    CHECK(result.err.find("parameter 'layer.weight' was written inside a forward or backward "
                          "(unit 'layer')") != std::string::npos);
  }
}

}  // namespace fsdp::testing
