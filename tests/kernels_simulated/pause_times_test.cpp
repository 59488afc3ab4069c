// Tests the duration of the GPU's pause kernel. The clock starts at 0 in each call.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/pause.h"
#include "kernels/support/streams.h"
#include "kernels_simulated/support/simulated_kernels.h"

namespace fsdp::kernels {
namespace {

uint64_t end_of_pause(const std::vector<int64_t>& marks, int64_t ns) {
  const auto stream = test::make_stream("pauses");
  pause_since(*stream, marks, ns);
  return test::last_launches().back().report.end_ns;
}

TEST_CASE("a pause ends to the nanosecond when its time since the latest mark is over") {
  for (const int64_t ns : {0, 1, 2, 3, 999, 1000, 65'537, 999'999, 1'000'001, 123'456'789}) {
    CAPTURE(ns);
    CHECK(end_of_pause({0}, ns) == static_cast<uint64_t>(ns));
    CHECK(end_of_pause({10, 40, 30}, ns) == static_cast<uint64_t>(40 + ns));
    CHECK(end_of_pause({-500, -70}, ns) == static_cast<uint64_t>(ns > 70 ? ns - 70 : 0));
  }
}

TEST_CASE("a pause is few instructions, however long it is") {
  static_cast<void>(end_of_pause({0}, 10'000'000'000));
  CHECK(test::last_launches().back().report.instructions < 1'000'000);
}

}  // namespace
}  // namespace fsdp::kernels
