#include "kernels/pause.h"

#include <doctest/doctest.h>

#include <array>

#include "fsdp/error.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

TEST_CASE("the clock does not go back on a stream, and a pause that is over lets it pass") {
  test::on_each_stream([](Stream& stream) {
    std::array<int64_t, 3> marks{-1, -1, -1};
    mark_time(stream, &marks[0]);
    mark_time(stream, &marks[1]);
    pause_since(stream, {marks.data(), 2}, 0);
    mark_time(stream, &marks[2]);
    stream.synchronize();
    CHECK(marks[0] >= 0);
    CHECK(marks[1] >= marks[0]);
    CHECK(marks[2] >= marks[1]);
  });
}

TEST_CASE("a pause since no mark, or for a negative time, is refused") {
  const auto stream = test::make_stream("pauses");
  int64_t mark = 0;
  CHECK_THROWS_WITH_AS(
      pause_since(*stream, {}, 5),
      "pause_since got 5 ns and 0 marks; hint: pass a time of 0 or more and at least one mark",
      InvalidArgument);
  CHECK_THROWS_AS(pause_since(*stream, {&mark, 1}, -1), InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
