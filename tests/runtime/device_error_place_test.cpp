#include "runtime/device_error_place.h"

#include <doctest/doctest.h>

#include <string>

using namespace fsdp;

TEST_CASE("a device's error says the innermost place, and keeps the rest of its text") {
  const auto fail = [] { throw DeviceError({.what = "cudaMalloc failed", .hint = "smaller"}); };
  const auto inner = [&] { with_place([] { return "reduce of unit 'a'"; }, fail); };
  const auto outer = [&] { with_place([] { return "backward of unit 'b'"; }, inner); };
  CHECK_THROWS_WITH_AS(outer(), "cudaMalloc failed (reduce of unit 'a'); hint: smaller",
                       DeviceError);
}

TEST_CASE("what is no device's error passes as it is, and results do, too") {
  const auto misuse = [] { throw StateError({.what = "misuse"}); };
  CHECK_THROWS_WITH_AS(with_place([] { return "here"; }, misuse), "misuse", StateError);
  int x = 3;
  const auto ask = [&]() -> int& { return x; };
  int& same = with_place([]() -> std::string { throw StateError({.what = "asked"}); }, ask);
  CHECK(&same == &x);
}
