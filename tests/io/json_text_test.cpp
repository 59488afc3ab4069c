#include "io/json_text.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "fsdp/error.h"

namespace fsdp {
namespace {

std::string text_refusal(std::string_view text, JsonLimits limits = {}) {
  try {
    parse_json({.text = text, .file = "f.json"}, limits);
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("A document holds exactly the values of its text") {
  const std::string text = R"({"a": [1, -2, 2.5, true, null, "é\n𐍈"], "b": {"a": {}}, "": []})";
  CHECK(parse_json({.text = text, .file = "f"}) == nlohmann::json::parse(text));
  CHECK(parse_json({.text = "18446744073709551615", .file = "f"}) ==
        std::numeric_limits<uint64_t>::max());
  CHECK(parse_json({.text = "-9223372036854775808", .file = "f"}) ==
        std::numeric_limits<int64_t>::min());
  CHECK(parse_json({.text = "\"\\ud800\\udf48\"", .file = "f"}) == "𐍈");
  CHECK(parse_json({.text = " \r\n\t7 ", .file = "f"}) == 7);
}

TEST_CASE("What strict JSON does not hold is refused with its line and byte") {
  struct Case {
    std::string_view text, expected;
  };
  using namespace std::string_view_literals;
  const Case cases[] = {
      {"", "the JSON text is empty (f.json, line 1, byte 0)"},
      {" \n",
       "broken JSON: syntax error while parsing value - unexpected end of input; expected "
       "'[', '{', or a literal (f.json, line 2, byte 2)"},
      {"\xef\xbb\xbf{}",
       "the JSON text starts with a byte order mark (f.json, line 1, byte 0); "
       "hint: save it as plain UTF-8"},
      {"{}\0"sv, "the JSON text has a NUL character (f.json, line 1, byte 2)"},
      {"{\"a\0\": 1}"sv, "the JSON text has a NUL character (f.json, line 1, byte 3)"},
      {"\xff\xfe{}", "the file is text in UTF-16, expected JSON (f.json); hint: convert it"},
      {"\xff{}",
       "broken JSON: syntax error while parsing value - invalid literal near "
       "'\\xff' (f.json, line 1, byte 0)"},
      {"[\"\xc3(\"]", "ill-formed UTF-8 byte"},
      {"[\"\xc0\xaf\"]", "ill-formed UTF-8 byte"},
      {"[\"\xed\xa0\x80\"]", "ill-formed UTF-8 byte"},
      {"[\"\xf4\x90\x80\x80\"]", "ill-formed UTF-8 byte"},
      {"[\"\\ud800\"]", "must be followed by U+DC00..U+DFFF"},
      {"[\"\\x41\"]", "forbidden character after backslash"},
      {"[\"\t\"]", "control character"},
      {"{\"a\": 1,\n\"b\": 2,\n\"a\": 3}",
       "the key 'a' appears twice in one object (f.json, line 3, byte 19)"},
      {"[18446744073709551616]", "the integer 18446744073709551616 does not fit 64 bits"},
      {"[-9223372036854775809]", "the integer -9223372036854775809 does not fit 64 bits"},
      {"[123456789012345678901234567890123456789012345678901234567890]",
       "the integer 1234567890123456789012345678901234567890… does not fit 64 bits"},
      {"[1e999]", "broken JSON: number overflow parsing '1e999' (f.json, line 1, byte 5)"},
      {"[01]", "broken JSON: syntax error while parsing array"},
      {"[1,]", "broken JSON: syntax error while parsing value - unexpected ']'"},
      {"{\"a\":1,}", "expected string literal (f.json, line 1, byte 7)"},
      {"{a:1}", "broken JSON: syntax error while parsing object key"},
      {"{'a':1}", "broken JSON: syntax error while parsing object key"},
      {"{} {}", "unexpected '{'; expected end of input (f.json, line 1, byte 3)"},
      {"{}x", "invalid literal near '{}x'; expected end of input (f.json, line 1, byte 2)"},
      {"[NaN]", "broken JSON: syntax error"},
      {"[Infinity]", "broken JSON: syntax error"},
      {"// c\n1", "broken JSON: syntax error"},
      {"[1 2]", "broken JSON: syntax error"},
      {"[\"a]", "missing closing quote near '\"a]' (f.json, line 1, byte 4)"},
      {"[\"a\\", "broken JSON: syntax error"},
      {"[[[", "broken JSON: syntax error"},
      {"]", "broken JSON: syntax error"},
      {"tru", "broken JSON: syntax error"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string said = text_refusal(text);
    CAPTURE(std::string(text));
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
    CHECK(said.find("json.exception") == said.npos);
  }
}

TEST_CASE("Nesting and strings are bounded") {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(text_refusal(nested(64)) == "accepted");
  CHECK(text_refusal(nested(65)) ==
        "the JSON is nested deeper than 64 levels (f.json, line 1, byte 64)");
  CHECK(text_refusal(std::string(10'000'000, '[')).find("deeper than 64") != std::string::npos);
  CHECK(text_refusal("[\"" + std::string(9, 'x') + "\"]", {.depth = 2, .string_bytes = 10}) ==
        "accepted");
  CHECK(text_refusal("[\"" + std::string(10, 'x') + "\"]", {.depth = 2, .string_bytes = 10}) ==
        "a string has more than 10 bytes (f.json, line 1, byte 1)");
  const std::string limited =
      "a number or white space has more than 10 bytes (f.json, line 1, byte ";
  for (const std::string& run : {std::string(11, ' '), std::string(11, '7')}) {
    const JsonLimits limits{.depth = 2, .string_bytes = 10};
    CHECK(text_refusal("[" + run + "]", limits) == limited + "1)");
    CHECK(text_refusal("[" + run, limits) == limited + "1)");
    CHECK(text_refusal("[1]" + run, limits) == limited + "3)");
    CHECK(text_refusal(run, limits) == limited + "0)");
  }
  CHECK(text_refusal(R"(["\"", "\\", "a\\\"b"])") == "accepted");
}

TEST_CASE("Keys and values are counted") {
  const auto keys = [](int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) text += fmt::format("\"{}\":0,", i);
    return text + "\"last\":0}";
  };
  JsonLimits limits{.keys = 4};
  CHECK(text_refusal(keys(3), limits) == "accepted");
  CHECK(text_refusal(keys(4), limits) ==
        "nested objects have more than 4 keys in all (f.json, line 1, byte 30)");
  CHECK(text_refusal("[" + keys(3) + "," + keys(3) + "]", limits) == "accepted");
  CHECK(text_refusal("{\"a\":" + keys(3) + "}", limits)
            .starts_with("nested objects have more than 4 keys in all"));
  std::string values = "[0";
  for (int i = 2; i < kMaxDocumentValues; ++i) values += ",0";
  CHECK(text_refusal(values + "]") == "accepted");
  CHECK(text_refusal(values + ",0]")
            .starts_with("the JSON has more than 32768 values (f.json, line 1, byte 65"));
}

TEST_CASE("Where asked a document may have other limits, and integers beyond 64 bits are real") {
  CHECK(parse_json({.text = "[1,2]", .file = "f"}, {.values = 3}).size() == 2);
  CHECK_THROWS_AS(parse_json({.text = "[1,2]", .file = "f"}, {.values = 2}), IoError);
  CHECK(parse_json({.text = "[1000000000000000019884624838656]", .file = "f"},
                   {.wide_integers = true})[0] == 1e30);
}

TEST_CASE("A message stays short and printable whatever the text holds") {
  const std::string said = text_refusal("[\"" + std::string(1'000'000, '\x1b') + "\"]");
  CHECK(said.size() < 600);
  CHECK(said.find('\x1b') == said.npos);
  const std::string twice = "\"" + std::string(1'000'000, 'k') + "\":1";
  CHECK(text_refusal("{" + twice + "," + twice + "}").size() < 300);
}

TEST_CASE("A text within a file is counted from the file's start") {
  try {
    parse_json({.text = "{x", .file = "m.safetensors", .first_byte = 8, .one_line = true});
    FAIL("accepted");
  } catch (const IoError& error) {
    CHECK(error.text().where == "m.safetensors, byte 9");
  }
}

}  // namespace
}  // namespace fsdp
