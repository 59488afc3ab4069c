#include "base/bytes.h"

#include <doctest/doctest.h>

#include <limits>

namespace fsdp {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST_CASE("division and rounding go up") {
  CHECK(divide_up(0, 7) == 0);
  CHECK(divide_up(1, 7) == 1);
  CHECK(divide_up(7, 7) == 1);
  CHECK(divide_up(8, 7) == 2);
  CHECK(round_up(0, 128) == 0);
  CHECK(round_up(1, 128) == 128);
  CHECK(round_up(128, 128) == 128);
  CHECK(round_up(1'000'003, 64) == 1'000'064);
}

TEST_CASE("a product that overflows or has a negative factor is empty") {
  CHECK(checked_product(0, kMost) == 0);
  CHECK(checked_product(3, 5) == 15);
  CHECK(checked_product(kMost, 1) == kMost);
  CHECK(!checked_product(kMost, 2));
  CHECK(!checked_product(int64_t{1} << 32, int64_t{1} << 31));
  CHECK(!checked_product(-1, 5));
  CHECK(!checked_product(5, -1));
}

TEST_CASE("sizes are written for people") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.0 KiB");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes((1 << 20) - 1) == "1.0 MiB");
  CHECK(format_bytes(45'403'341) == "43.3 MiB");
  CHECK(format_bytes(int64_t{1} << 31) == "2.0 GiB");
  CHECK(format_bytes(int64_t{5} << 40) == "5.0 TiB");
  CHECK(format_bytes(int64_t{5000} << 40) == "5000.0 TiB");
  CHECK(format_bytes(-2048) == "-2.0 KiB");
}

}  // namespace
}  // namespace fsdp
