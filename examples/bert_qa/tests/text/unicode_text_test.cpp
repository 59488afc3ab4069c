#include "bert_qa/text/unicode_text.h"

#include <doctest/doctest.h>

namespace bert_qa {
namespace {

TEST_CASE("every scalar value decodes to what was encoded") {
  for (char32_t c = 0; c < kCodePointEnd; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const DecodedChar decoded = decode_utf8(text, 0);
    const bool same = decoded.code_point == c && decoded.byte_length == int(text.size());
    if (!same) CHECK(static_cast<uint32_t>(c) == static_cast<uint32_t>(decoded.code_point));
  }
}

TEST_CASE("malformed bytes are one replacement character each") {
  for (const std::string text : {"\x80", "\xc0", "\xc3", "\xe4\xb8", "\xed\xa0\x80", "\xf5\x80",
                                 "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff"}) {
    CHECK(decode_utf8(text, 0).byte_length == 1);
    CHECK(decode_utf8(text, 0).code_point == kReplacementCharacter);
    CHECK(count_code_points(text) == int64_t(text.size()));
    CHECK_FALSE(is_valid_utf8(text));
  }
  CHECK(is_valid_utf8("aé北\U0001f600\ufffd"));
}

TEST_CASE("slices count code points and are cut at the end") {
  const std::string text = "aé北\U0001f600b";
  CHECK(count_code_points(text) == 5);
  CHECK(byte_of_code_point(text, 0) == 0);
  CHECK(byte_of_code_point(text, 3) == 6);
  CHECK(byte_of_code_point(text, 9) == text.size());
  CHECK(code_point_slice(text, 1, 3) == "é北");
  CHECK(code_point_slice(text, 3, 9) == "\U0001f600b");
  CHECK(code_point_slice(text, 7, 9) == "");
  CHECK(code_point_slice(text, 2, 2) == "");
}

TEST_CASE("text is lowered as Python lowers it") {
  CHECK(to_lower("ABC É北") == "abc é北");
  CHECK(to_lower("İ") == "i\u0307");
  CHECK(to_lower("ΟΔΟΣ ΣΑΣ. Σ") == "οδος σας. σ");
}

TEST_CASE("white space and word characters are Python's") {
  CHECK(strip_left(" \t\u00a0\u3000\x1f x ") == "x ");
  CHECK(strip_left("\u200bx") == "\u200bx");
  CHECK(strip_left("") == "");
  for (const char32_t c : {U'a', U'_', U'7', U'é', U'北', U'²', U'Ⅷ'}) CHECK(is_word_character(c));
  for (const char32_t c : {U'-', U' ', U'\u0301', U'€'}) CHECK_FALSE(is_word_character(c));
}

}  // namespace
}  // namespace bert_qa
