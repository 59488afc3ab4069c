#include "base/bytes.h"

#include <doctest/doctest.h>

#include <limits>

#include "fsdp/program_text.h"

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

TEST_CASE("sizes are read as people write them: KiB is 1024 bytes, KB 1000") {
  CHECK(parse_bytes("0") == 0);
  CHECK(parse_bytes("1073741824") == 1 << 30);
  CHECK(parse_bytes("9223372036854775807") == kMost);
  CHECK(parse_bytes("7B") == 7);
  CHECK(parse_bytes("16GiB") == int64_t{16} << 30);
  CHECK(parse_bytes("16 gib") == int64_t{16} << 30);
  CHECK(parse_bytes("500MB") == 500'000'000);
  CHECK(parse_bytes("1.5KiB") == 1536);
  CHECK(parse_bytes("0.5 kb") == 500);
  CHECK(parse_bytes("2TB") == 2'000'000'000'000);
}

TEST_CASE("what is no size is not read as one") {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1",
                           "-1GiB",
                           "1G",
                           "1 G",
                           "1K",
                           "1iB",
                           "1GiBs",
                           "1GBB",
                           "1e9",
                           "0x10",
                           "1,5GB",
                           "1 .5GB",
                           "1GiB ",
                           " 1GiB",
                           "inf",
                           "nan",
                           "1EiB",
                           "9223372036854775808",
                           "9007199254740992KiB",
                           "9e18TiB",
                           "99999999.5TiB",
                           "1..5GB",
                           "1.5.5GB"}) {
    CAPTURE(text);
    CHECK(parse_bytes(text) == std::nullopt);
    CHECK(question_of_unit(text).empty());
  }
}

TEST_CASE("a size is spelled exactly, and read back as it was") {
  CHECK(spell_bytes(int64_t{16} << 30) == "16GiB");
  CHECK(spell_bytes(1000) == "1000B");
  CHECK(spell_bytes(0) == "0B");
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1536},
                              int64_t{500'000'000}, int64_t{80} << 30, kMost}) {
    CHECK(parse_bytes(spell_bytes(bytes)) == bytes);
  }
}

TEST_CASE("a small number without a unit is questioned") {
  CHECK(question_of_unit("80") == "add a unit: 80GiB, or 80B for bytes");
  CHECK(question_of_unit("999999") == "add a unit: 999999GiB, or 999999B for bytes");
  for (const char* clear : {"0", "80B", "80 GiB", "1000000", "1073741824"}) {
    CAPTURE(clear);
    CHECK(question_of_unit(clear).empty());
  }
}

}  // namespace
}  // namespace fsdp
