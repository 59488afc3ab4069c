// Tests the barriers of ranks with mapped shards (docs/streams.md, wait 11). One rank is late.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "launch.h"

namespace fsdp::testing {
namespace {

// Returns the lines sorted by rank. Each rank's lines keep their order. In the output, the lines of
// different ranks interleave at random.
std::vector<std::string> losses(const std::string& how) {
  const ProcessResult result = run_process({FSDP_RUN, "-n", "2", TORCH_RANK, "meeting", how}, {});
  CAPTURE(result.err);
  REQUIRE(result.code == 0);
  std::vector<std::string> lines;
  std::istringstream out(result.out);
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  std::stable_sort(lines.begin(), lines.end(), [](const std::string& a, const std::string& b) {
    return a.substr(0, 7) < b.substr(0, 7);  // "rank 0:"
  });
  REQUIRE(lines.size() == 12);
  return lines;
}

}  // namespace

TEST_CASE("mapped shards show every rank the same values, and each meeting is needed for it") {
  const std::vector<std::string> gathered = losses("gathered");
  CHECK(losses("mapped") == gathered);
  CHECK(losses("without-first") != gathered);
  CHECK(losses("without-last") != gathered);
}

}  // namespace fsdp::testing
