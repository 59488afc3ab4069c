// The README's program, alone and on several ranks.
#include <doctest/doctest.h>

#include <string>

#include "support/run_program.h"

using namespace fsdp::testing;

namespace {

double last_loss(const std::string& out) { return std::stod(out.substr(out.rfind("loss ") + 5)); }

}  // namespace

TEST_CASE("hello_unit learns to count on one rank and on three") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const ProcessResult result = run_ranks_of(HELLO_UNIT, ranks, {});
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    CHECK(result.out.find("tokens") != std::string::npos);  // its table of units
    CHECK(last_loss(result.out) < 0.1);
  }
}
