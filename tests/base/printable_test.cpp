#include <doctest/doctest.h>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

using namespace std::string_view_literals;

TEST_CASE("Printable text stays as it is in any script") {
  for (const auto text :
       {""sv, "bert.encoder.layer.0"sv, "é"sv, "中"sv, "𐍈"sv, "\u00a0"sv, "\uffff"sv}) {
    CHECK(printable(text) == text);
  }
}

TEST_CASE("Controls and bytes that are not UTF-8 are shown as numbers") {
  CHECK(printable("a\n\t\0\x1b\x7f"sv) == "a\\x0a\\x09\\x00\\x1b\\x7f");
  CHECK(printable("\u0085") == "\\xc2\\x85");                      // C1 control
  CHECK(printable("\xff") == "\\xff");                             // never a first byte
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");                    // overlong
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond the last code point
  CHECK(printable("\xc3") == "\\xc3");                             // truncated
  CHECK(printable("\xe4\xb8z") == "\\xe4\\xb8z");
}

TEST_CASE("Quoted names are cut between characters, with their size") {
  CHECK(quoted_name("a") == "'a'");
  CHECK(quoted_name(std::string(100, 'x')) == "'" + std::string(100, 'x') + "'");
  CHECK(quoted_name(std::string(101, 'x')) == "'" + std::string(100, 'x') + "…' (101 bytes)");
  const std::string wide = std::string(99, 'x') + "中" + std::string(50, 'y');
  CHECK(quoted_name(wide) == "'" + std::string(99, 'x') + "…' (152 bytes)");
}

}  // namespace
}  // namespace fsdp
