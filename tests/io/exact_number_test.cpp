#include "io/exact_number.h"

#include <doctest/doctest.h>

#include <bit>
#include <limits>

namespace fsdp {
namespace {

TEST_CASE("Integers come back from their text, and each has one text") {
  for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 53, INT64_MAX, INT64_MIN}) {
    CHECK(integer_from_text(exact_text(value)) == value);
  }
  CHECK(exact_text(int64_t{-12}) == "-12");
  for (const char* text : {"", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "0x1", "1e3",
                           "9223372036854775808", "-9223372036854775809", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK(!integer_from_text(text));
  }
}

TEST_CASE("Every bit of a real number comes back from its text") {
  using Limits = std::numeric_limits<double>;
  for (const double value :
       {0.0, -0.0, 1.0, -3.0, 0.1, 1e-3, 1e300, Limits::max(), Limits::min(), Limits::denorm_min(),
        -Limits::denorm_min(), 4.9e-320, Limits::infinity(), -Limits::infinity(),
        Limits::quiet_NaN(), -Limits::quiet_NaN(), std::bit_cast<double>(0x7ff0000000000001)}) {
    const std::string text = exact_text(value);
    CAPTURE(text);
    const auto read = double_from_text(text);
    REQUIRE(read);
    CHECK(std::bit_cast<uint64_t>(*read) == std::bit_cast<uint64_t>(value));
  }
  CHECK(exact_text(3.0) == "0x1.8p+1");
  CHECK(exact_text(-0.0) == "-0x0p+0");
  CHECK(exact_text(-Limits::infinity()) == "-inf");
  CHECK(exact_text(Limits::quiet_NaN()) == "nan(7ff8000000000000)");
}

TEST_CASE("Texts that exact_text does not write give no real number") {
  for (const char* text : {"",
                           "-",
                           "0x",
                           "-0x",
                           "1",
                           "1.5",
                           "0x1",
                           "0x1.8",
                           "0X1.8p+1",
                           "0x1.80p+1",
                           "0x1.8P+1",
                           "0x3p+0",
                           "0x-1.8p+1",
                           "0x0x1p+0",
                           "--0x1p+0",
                           "+0x1p+0",
                           "0x1p+2000",
                           "0x1p+0 ",
                           "INF",
                           "infinity",
                           "nan",
                           "nan(",
                           "nan()",
                           "nan(7ff8000000000000",
                           "nan(7ff0000000000000)",
                           "nan(3ff0000000000000)",
                           "nan(7FF8000000000000)",
                           "nan(7ff80000000000000)"}) {
    CAPTURE(text);
    CHECK(!double_from_text(text));
  }
}

}  // namespace
}  // namespace fsdp
