#include "io/safetensors_index.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

std::string refusal_of_index(const std::string& text) {
  try {
    parse_safetensors_index(text, "index.json");
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("An index gives the file of each tensor; keys that are not ours are walked over") {
  const SafetensorsIndex index = parse_safetensors_index(
      R"({"metadata": {"total_size": 96, "deep": [{"total_size": 1}, null, 2.5, -1, true]},)"
      R"( "other": [1, {"weight_map": 3}], "weight_map": {"a": "m-1.safetensors", "b": "m_2"}})",
      "f");
  CHECK(index.total_bytes == 96);
  CHECK(index.file_of_tensor ==
        std::map<std::string, std::string>{{"a", "m-1.safetensors"}, {"b", "m_2"}});
  CHECK(!parse_safetensors_index(R"({"weight_map":{}})", "f").total_bytes);
  CHECK(!parse_safetensors_index(R"({"metadata":{"total_size":1.5e9},"weight_map":{}})", "f")
             .total_bytes);
}

TEST_CASE("A malformed index is refused with its line and byte") {
  struct Case {
    std::string text, expected;
  };
  const Case cases[] = {
      {"", "the JSON text is empty"},
      {"[]", "the index is an array instead of an object (index.json, line 1, byte 0)"},
      {"3", "the index is a number instead of an object"},
      {"null", "the index is null instead of an object"},
      {"{}", "weight_map is missing (index.json, line 1, byte 1)"},
      {R"({"metadata":{"weight_map":{"a":"f"}}})", "weight_map is missing"},
      {R"({"weight_map":null})", "weight_map is null instead of an object"},
      {R"({"weight_map":"f"})", "weight_map is a string instead of an object"},
      {R"({"weight_map":["f"]})", "weight_map is an array instead of an object"},
      {R"({"weight_map":{"a":1}})", "tensor 'a': a number instead of a file name"},
      {R"({"weight_map":{"a":null}})", "tensor 'a': null instead of a file name"},
      {R"({"weight_map":{"a":{"b":"f"}}})", "tensor 'a': an object instead of a file name"},
      {R"({"weight_map":{"a":["f"]}})", "tensor 'a': an array instead of a file name"},
      {R"({"weight_map":{"a":""}})", "tensor 'a': '' is not a plain file name"},
      {R"({"weight_map":{"a":"."}})", "'.' is not a plain file name"},
      {R"({"weight_map":{"a":".."}})", "'..' is not a plain file name"},
      {R"({"weight_map":{"a":"../f"}})", "'../f' is not a plain file name"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "'/etc/passwd' is not a plain file name"},
      {R"({"weight_map":{"a":"sub/f"}})", "'sub/f' is not a plain file name"},
      {R"({"weight_map":{"a":"a b"}})", "'a b' is not a plain file name"},
      {R"({"weight_map":{"a":"f\n"}})", "is not a plain file name"},
      {R"({"weight_map":{"a":"é"}})", "'é' is not a plain file name"},
      {"{\"weight_map\":{\n\"a\":\"f\",\n\"a\":\"g\"}}",
       "the key 'a' appears twice in one object (index.json, line 3, "},
      {R"({"weight_map":{},"weight_map":{}})", "the key 'weight_map' appears twice"},
      {R"({"metadata":{"total_size":18446744073709551616},"weight_map":{}})",
       "does not fit 64 bits"},
      {R"({"weight_map":{"a":"f")", "broken JSON"},
      {R"({"weight_map":{"a":"f"}} x)", "broken JSON"},
      {"{\"x\":" + std::string(1'000, '[') + "}", "nested deeper than 64"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string said = refusal_of_index(text);
    CAPTURE(text);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
}

}  // namespace
}  // namespace fsdp
